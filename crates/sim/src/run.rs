//! Running seeds: one run, its report, and what to say when it fails.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::connections;
use crate::features::Features;
use crate::scenario::Scenario;
use crate::trace::{Trace, seconds};
use crate::violation::{Coverage, Violation};
use crate::world::World;

/// A run without a broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Events that happened.
    pub steps: u64,
    /// Virtual time that passed, in nanoseconds.
    pub elapsed: u64,
    /// A hash of everything that happened.
    pub hash: u64,
    /// How often what happened.
    pub coverage: Coverage,
}

/// A run with a broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The step at which the rule was found broken.
    pub step: u64,
    /// The rule.
    pub violation: Violation,
    /// The features that are needed to break it, as far as they were reduced.
    pub features: Features,
    /// The last steps.
    pub trace: Vec<String>,
}

/// Steps of the world for one of the history of TCP allocations, which has neither losses nor attackers.
const STEPS_A_CONNECTION: u64 = 20;

/// Lines of trace in a report of a failure.
const LINES: usize = 40;

/// Runs a scenario for `steps` events, then lets it come to an end.
///
/// # Errors
///
/// The first rule that was broken, without a trace.
pub fn run(scenario: Scenario, steps: u64) -> Result<Report, Box<Failure>> {
    run_traced(scenario, steps, 0)
}

fn run_traced(scenario: Scenario, steps: u64, lines: usize) -> Result<Report, Box<Failure>> {
    let (seed, features) = (scenario.seed, scenario.features);
    let mut world = World::new(scenario, Trace::new(lines));
    let mut done = 0;
    let result = caught(|| {
        while done < steps {
            done += 1;
            world.step()?;
        }
        world.close()
    });
    match result {
        Ok(()) => Ok(Report {
            seed,
            steps: done,
            elapsed: world.elapsed(),
            hash: world.watched.trace.hash(),
            coverage: world.watched.coverage,
        }),
        Err(violation) => Err(Box::new(Failure {
            seed,
            step: done,
            violation,
            features,
            trace: world.watched.trace.text(),
        })),
    }
}

/// Calls `happens`, and returns a panic in it as a violation: one in the engine is a finding like any other.
pub(crate) fn caught<T>(happens: impl FnOnce() -> Result<T, Violation>) -> Result<T, Violation> {
    catch_unwind(AssertUnwindSafe(happens)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(Violation::new("panic", text.unwrap_or_default()))
    })
}

/// Runs a seed, and its history of TCP allocations; a failure is reduced and comes with its trace.
///
/// # Errors
///
/// The first rule that was broken.
pub fn run_seed(seed: u64, steps: u64) -> Result<Report, Box<Failure>> {
    let mut report = run(Scenario::draw(seed), steps).map_err(|failure| reduce(*failure))?;
    match caught(|| connections::run(seed, steps / STEPS_A_CONNECTION)) {
        Ok(coverage) => report.coverage.add(&coverage),
        Err(violation) => {
            return Err(Box::new(Failure {
                seed,
                step: 0,
                violation,
                features: Features::NONE,
                trace: Vec::new(),
            }));
        }
    }
    Ok(report)
}

/// Leaves out features, one after the other, as long as the same rule breaks; then records the last
/// steps of what is left.
fn reduce(failure: Failure) -> Box<Failure> {
    let rule = failure.violation.rule;
    let mut best = failure;
    // Other features make another history, in which the rule may break later.
    let steps_max = best.step.saturating_mul(2);
    for feature in best.features.iter().collect::<Vec<_>>() {
        let fewer = best.features.without(feature);
        let scenario = Scenario::with_features(best.seed, fewer);
        if let Err(other) = run(scenario, steps_max)
            && other.violation.rule == rule
        {
            best = *other;
        }
    }
    let scenario = Scenario::with_features(best.seed, best.features);
    match run_traced(scenario, best.step, LINES) {
        Err(traced) => traced,
        Ok(_) => Box::new(best), // not reached: the same seed does the same again
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: {} steps, {} s, hash {:016x}",
            self.seed,
            self.steps,
            seconds(self.elapsed),
            self.hash
        )
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "  {line}")?;
        }
        writeln!(
            f,
            "seed {} broke {} at step {}",
            self.seed, self.violation, self.step
        )?;
        writeln!(f, "with {:?}", self.features)?;
        write!(
            f,
            "again: TURNBUCKLE_SEED={} cargo test -p turnbuckle-sim",
            self.seed
        )
    }
}

impl std::error::Error for Failure {}
