//! The numbers themselves.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{Description, Kind, Label, Reason, Sample};

/// A field of a struct of counters: one number, or one for each reason.
pub trait Measure {
    /// Whether it only grows.
    const KIND: Kind;

    /// What it is divided by; empty if it is one number.
    const LABELS: &'static [Label];

    /// Shows each number.
    fn visit(&self, counter: &'static Description, show: &mut dyn FnMut(Sample));

    /// Adds the numbers of `other`.
    fn add_all(&self, other: &Self);
}

/// A number that only grows, written by one thread.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns the present value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Adds `count`. A load and a store, not a locked addition: there is one writer.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0
            .store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Takes over a number that is counted elsewhere.
    #[inline]
    pub fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }
}

impl Measure for Counter {
    const KIND: Kind = Kind::Total;
    const LABELS: &'static [Label] = &[];

    fn visit(&self, counter: &'static Description, show: &mut dyn FnMut(Sample)) {
        show(Sample {
            counter,
            label: None,
            value: self.get(),
        });
    }

    fn add_all(&self, other: &Self) {
        self.add(other.get());
    }
}

/// A number that is as high as it is now, written by one thread.
#[derive(Debug, Default)]
pub struct Level(Counter);

impl Level {
    /// Returns the present value.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.get()
    }

    /// Replaces the value.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.set(value);
    }
}

impl Measure for Level {
    const KIND: Kind = Kind::Level;
    const LABELS: &'static [Label] = &[];

    fn visit(&self, counter: &'static Description, show: &mut dyn FnMut(Sample)) {
        self.0.visit(counter, show);
    }

    fn add_all(&self, other: &Self) {
        self.0.add_all(&other.0);
    }
}

/// A counter for each reason of a closed list, `N` of them.
#[derive(Debug)]
pub struct PerReason<R, const N: usize> {
    counters: [Counter; N],
    reason: PhantomData<fn(R)>,
}

impl<R: Reason, const N: usize> Default for PerReason<R, N> {
    fn default() -> Self {
        const { assert!(N == R::COUNT, "a counter for each reason") }
        Self {
            counters: [const { Counter(AtomicU64::new(0)) }; N],
            reason: PhantomData,
        }
    }
}

impl<R: Reason, const N: usize> PerReason<R, N> {
    /// Returns the counter of `reason`.
    #[inline]
    pub fn of(&self, reason: R) -> &Counter {
        // Within bounds by the assertion above.
        &self.counters[reason.index()]
    }

    /// Returns all counters, in the order of the reasons.
    pub fn iter(&self) -> impl Iterator<Item = &Counter> {
        self.counters.iter()
    }
}

impl<R: Reason, const N: usize> Measure for PerReason<R, N> {
    const KIND: Kind = Kind::Total;
    const LABELS: &'static [Label] = R::LABELS;

    fn visit(&self, counter: &'static Description, show: &mut dyn FnMut(Sample)) {
        for (label, value) in R::LABELS.iter().zip(&self.counters) {
            show(Sample {
                counter,
                label: Some(label),
                value: value.get(),
            });
        }
    }

    fn add_all(&self, other: &Self) {
        for (sum, part) in self.counters.iter().zip(&other.counters) {
            sum.add(part.get());
        }
    }
}
