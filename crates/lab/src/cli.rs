//! `turnbuckle bench`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::case::Case;
use crate::commands::commands;
use crate::connections::Cell;
use crate::cpus::{CpuList, Placement};
use crate::hosts::{Addresses, HostsFile, Source, namespace_addresses};
use crate::interrupt;
use crate::namespaces::Machine;
use crate::note::note;
use crate::report::{Environment, Session};
use crate::scenario::{Arrival, Scenario};
use crate::scratch::Scratch;
use crate::server::{self, Server, Values};
use crate::suite::Suite;

/// Compare servers under the same load, in alternating rounds, and write a report
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Three hosts (load, relay, peer) are made as network namespaces (root needed) and removed again whatever happens; with --hosts the same scenario runs \
over real machines. The folder it writes has README.md, env.json, raw.csv, summary.md and report.html.

Examples:
  turnbuckle bench smoke
  turnbuckle bench all --out docs/performance --topic servers
  turnbuckle bench flood-100 --server turnbuckle --server coturn --rounds 8
  turnbuckle bench calls --servers my-servers.toml --hosts machines.toml
  turnbuckle bench accept --rounds 2 --topic connections

A file of servers has entries such as
  [[server]]
  name = \"mine\"
  command = \"my-turn --listen {listen}:{port} --relay {relay} --user {user}:{password} --realm {realm}\"
and replaces shipped ones of the same name. A file of hosts has the tables [load], [relay] and [peer] with `prefix` (such as \"ssh root@relay1\"), `cpus`, \
`turnbuckle` (path there), for [relay] and [peer] `address`, for [relay] `relay_address`, and `arrival` (offloads or singly) at its top.")]
pub struct Arguments {
    /// Scenarios by name or file; `all` is every shipped one but the smoke test and those about connections, which are `connections`
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// List scenarios and servers
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    times: Times,
    /// Only with datagrams arriving in this way: offloads or singly
    #[arg(long)]
    arrival: Option<Arrival>,
    #[command(flatten)]
    folder: Folder,
    /// Real machines instead of namespaces
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Program whose `load` and `peer` are used, so that builds of the server can be compared by the same ones [default: this program]
    #[arg(long, value_name = "PROGRAM")]
    instruments: Option<String>,
    /// Print the command lines of the first round and run nothing, to start the parts by hand
    #[arg(long)]
    print_commands: bool,
    #[command(flatten)]
    cpus: Cpus,
}

/// Which servers are compared.
#[derive(Args, Clone, Debug)]
struct Which {
    /// Server to measure, by name; repeatable [default: the scenario's, or turnbuckle, turnbuckle-single, turnbuckle-mmsg, coturn]
    #[arg(long = "server", value_name = "NAME")]
    servers: Vec<String>,
    /// File with further servers
    #[arg(long = "servers", value_name = "FILE")]
    servers_file: Option<PathBuf>,
    /// Server that the others are compared with
    #[arg(long, value_name = "NAME", default_value = "coturn")]
    against: String,
}

/// How long and how often.
#[derive(Args, Clone, Debug)]
struct Times {
    /// Rounds, instead of the scenario's
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Seconds measured in each run, instead of the scenario's
    #[arg(long, value_name = "SECONDS")]
    window: Option<f64>,
    /// Seconds discarded before, instead of the scenario's
    #[arg(long, value_name = "SECONDS")]
    warm_up: Option<f64>,
}

/// Where the report is.
#[derive(Args, Clone, Debug)]
struct Folder {
    /// Folder in which the report's folder is made
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
    /// Second half of the folder's name
    #[arg(long, default_value = "servers")]
    topic: String,
    /// Continue this folder instead of making one
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "topic"])]
    into: Option<PathBuf>,
    /// Make the pages of this folder again from its raw.csv, env.json and findings.md, and run nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["scenarios", "into"])]
    render: Option<PathBuf>,
}

/// CPUs of the namespaces.
#[derive(Args, Clone, Debug)]
struct Cpus {
    /// CPUs of the server, such as 0 or 0-1; in namespaces
    #[arg(long, value_name = "LIST")]
    relay_cpus: Option<CpuList>,
    /// CPUs of the load; in namespaces
    #[arg(long, value_name = "LIST")]
    load_cpus: Option<CpuList>,
    /// CPUs of the reflector; in namespaces
    #[arg(long, value_name = "LIST")]
    peer_cpus: Option<CpuList>,
}

const DEFAULT_SERVERS: [&str; 4] = [
    "turnbuckle",
    "turnbuckle-single",
    "turnbuckle-mmsg",
    "coturn",
];

/// Does what was asked for; whether every run gave figures.
///
/// # Errors
///
/// For anything that cannot be understood or set up, and after a signal.
pub fn run(arguments: &Arguments) -> Result<bool> {
    if arguments.list {
        return list(arguments).map(|()| true);
    }
    if let Some(folder) = &arguments.folder.render {
        return crate::report::render(folder).map(|()| true);
    }
    if arguments.scenarios.is_empty() {
        bail!("which scenario? --list shows them");
    }
    let scenarios = scenarios(arguments)?;
    let known = server::known(arguments.which.servers_file.as_deref())?;
    let mut suite = Suite {
        servers: servers(arguments, &known)?,
        servers_by_scenario: servers_by_scenario(arguments, &scenarios, &known)?,
        scenarios,
        arrival: arguments.arrival,
        raw: PathBuf::new(),
        tmp: String::new(),
    };
    if arguments.print_commands {
        return print_commands(arguments, &suite).map(|()| true);
    }
    interrupt::watch()?;
    let source = source(arguments)?;
    let scratch = Scratch::new()?;
    let tmp = scratch.path().display().to_string();
    let folder = folder(arguments)?;
    suite.raw = folder.join("raw.csv");
    suite.tmp.clone_from(&tmp);
    let mut session = Session::here();
    describe(&mut session, &suite, &source, &tmp)?;
    let outcome = suite.run(&source);
    // What was measured before a failure is worth keeping.
    if let Ok(outcome) = &outcome {
        session.notes.clone_from(&outcome.notes);
    }
    if suite.raw.exists() {
        let mut environment = Environment::read(&folder).unwrap_or_default();
        environment.add(&arguments.which.against, &suite.scenarios, session);
        environment.write(&folder)?;
        crate::report::render(&folder)?;
        say(&format!("report: {}\n", folder.display()));
    }
    let outcome = outcome?;
    if outcome.failed > 0 {
        note(&format!(
            "{} runs gave no figures; the report says why",
            outcome.failed
        ));
    }
    Ok(outcome.failed == 0)
}

fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn scenarios(arguments: &Arguments) -> Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for name in &arguments.scenarios {
        for mut scenario in Scenario::find(name)? {
            if let Some(rounds) = arguments.times.rounds {
                scenario.times.rounds = rounds;
            }
            if let Some(window) = arguments.times.window {
                if !(0.5..=3600.0).contains(&window) {
                    bail!("--window {window}: 0.5 to 3600 seconds are allowed");
                }
                scenario.times.window_s = window;
            }
            if let Some(warm_up) = arguments.times.warm_up {
                if !(0.0..=600.0).contains(&warm_up) {
                    bail!("--warm-up {warm_up}: 0 to 600 seconds are allowed");
                }
                scenario.times.warm_up_s = warm_up;
            }
            scenarios.push(scenario);
        }
    }
    Ok(scenarios)
}

fn servers(arguments: &Arguments, known: &[Server]) -> Result<Vec<Server>> {
    let names: Vec<&str> = if arguments.which.servers.is_empty() {
        DEFAULT_SERVERS.to_vec()
    } else {
        arguments.which.servers.iter().map(String::as_str).collect()
    };
    named(&names, known)
}

/// Returns the servers of scenarios that name their own, unless the command line names some.
fn servers_by_scenario(
    arguments: &Arguments,
    scenarios: &[Scenario],
    known: &[Server],
) -> Result<BTreeMap<String, Vec<Server>>> {
    scenarios
        .iter()
        .filter(|scenario| arguments.which.servers.is_empty() && !scenario.servers.is_empty())
        .map(|scenario| {
            let names: Vec<&str> = scenario.servers.iter().map(String::as_str).collect();
            Ok((scenario.name.clone(), named(&names, known)?))
        })
        .collect()
}

fn named(names: &[&str], known: &[Server]) -> Result<Vec<Server>> {
    names
        .iter()
        .map(|name| {
            known
                .iter()
                .find(|server| server.name == **name)
                .cloned()
                .with_context(|| format!("no server `{name}`; --list shows them"))
        })
        .collect()
}

fn list(arguments: &Arguments) -> Result<()> {
    let mut text = "scenarios:\n".to_owned();
    for scenario in Scenario::all_shipped()? {
        let arrivals: Vec<String> = scenario.arrivals.iter().map(Arrival::to_string).collect();
        text.push_str(&format!(
            "  {:12} {} ({})\n",
            scenario.name,
            scenario.title,
            arrivals.join(", ")
        ));
    }
    text.push_str("servers:\n");
    for server in server::known(arguments.which.servers_file.as_deref())? {
        text.push_str(&format!("  {:20} {}\n", server.name, server.command));
    }
    say(&text);
    Ok(())
}

fn own_program() -> Result<String> {
    Ok(std::env::current_exe()
        .context("where is this program?")?
        .display()
        .to_string())
}

fn instruments(arguments: &Arguments) -> Result<String> {
    match &arguments.instruments {
        Some(program) => Ok(program.clone()),
        None => own_program(),
    }
}

fn source(arguments: &Arguments) -> Result<Source> {
    if let Some(path) = &arguments.hosts {
        return Ok(Source::Machines(Box::new(HostsFile::read(path)?)));
    }
    let given = [
        ("--relay-cpus", &arguments.cpus.relay_cpus),
        ("--load-cpus", &arguments.cpus.load_cpus),
        ("--peer-cpus", &arguments.cpus.peer_cpus),
    ];
    for (option, list) in given {
        let online = CpuList::online();
        if let Some(list) = list
            && !list.is_within(&online)
        {
            bail!("{option} {list}: this machine has the CPUs {online}");
        }
    }
    let machine = Machine::take()?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut placement = Placement::for_cpus(cpus);
    for (slot, given) in [
        (&mut placement.relay, &arguments.cpus.relay_cpus),
        (&mut placement.load, &arguments.cpus.load_cpus),
        (&mut placement.peer, &arguments.cpus.peer_cpus),
    ] {
        if let Some(given) = given {
            slot.clone_from(given);
        }
    }
    Ok(Source::Namespaces {
        machine,
        placement,
        turnbuckle: own_program()?,
        instruments: instruments(arguments)?,
    })
}

fn folder(arguments: &Arguments) -> Result<PathBuf> {
    let folder = match &arguments.folder.into {
        Some(folder) => folder.clone(),
        None => {
            let today = jiff::Timestamp::now().to_string();
            let date = today.get(..10).unwrap_or_default();
            let folder = arguments
                .folder
                .out
                .join(format!("{date}-{}", arguments.folder.topic));
            if folder.join("raw.csv").exists() {
                bail!(
                    "{} is there already; --into continues it, --topic names another",
                    folder.display()
                );
            }
            folder
        }
    };
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Adds versions and command lines, as the report shows them.
fn describe(session: &mut Session, suite: &Suite, source: &Source, tmp: &str) -> Result<()> {
    let addresses = match source {
        Source::Namespaces { .. } => namespace_addresses("turnbuckle", "turnbuckle"),
        Source::Machines(file) => file.addresses()?,
    };
    let relay_cpus = match source {
        Source::Namespaces { placement, .. } => placement.relay.count(),
        Source::Machines(_) => 1,
    };
    for server in suite.all_servers() {
        let version = version(server, source).unwrap_or_else(|error| format!("{error:#}"));
        let scenario = suite.scenarios.iter().find(|scenario| {
            let servers = suite.servers_of(scenario);
            servers.iter().any(|each| each.name == server.name)
        });
        let cell = first_cell(scenario)?;
        let case = first_case(scenario, server, cell.as_ref());
        let command = match case {
            Some(case) => commands(
                &Case {
                    scenario: &Scenario {
                        direct: false,
                        ..case.scenario.clone()
                    },
                    ..case
                },
                &addresses,
                relay_cpus,
                "/tmp",
            )?
            .server
            .unwrap_or_default(),
            None => Vec::new(),
        };
        session.servers.push(crate::report::ServerEntry {
            name: server.name.clone(),
            version: version.trim().replace('\n', ", "),
            command: shell_words::join(command),
        });
    }
    for scenario in &suite.scenarios {
        let Some(server) = suite.servers_of(scenario).first() else {
            continue;
        };
        let cell = first_cell(Some(scenario))?;
        let Some(case) = first_case(Some(scenario), server, cell.as_ref()) else {
            continue;
        };
        let commands = commands(&case, &addresses, relay_cpus, tmp)?;
        let parts: Vec<String> = [
            Some(&commands.peer),
            commands.meanwhile_peer.as_ref(),
            commands.meanwhile.as_ref(),
            Some(&commands.load),
        ]
        .into_iter()
        .flatten()
        .filter(|words| !words.is_empty())
        .map(shell_words::join)
        .collect();
        session
            .commands
            .push(format!("{}: {}", scenario.name, parts.join(" | ")));
    }
    Ok(())
}

/// Returns the first cell of a scenario about connections.
fn first_cell(scenario: Option<&Scenario>) -> Result<Option<Cell>> {
    match scenario {
        Some(scenario) if scenario.question.is_about_connections() => {
            Ok(scenario.connections.cells(1)?.into_iter().next())
        }
        _ => Ok(None),
    }
}

fn first_case<'a>(
    scenario: Option<&'a Scenario>,
    server: &'a Server,
    cell: Option<&'a Cell>,
) -> Option<Case<'a>> {
    let scenario = scenario?;
    Some(Case {
        scenario,
        arrival: *scenario.arrivals.first()?,
        percent_of_capacity: None,
        rate: (!scenario.search.percent_of_capacity.is_empty())
            .then_some(scenario.search.search_from),
        cell,
        server,
        round: 1,
        warm_up_s: scenario.times.warm_up_s,
        window_s: scenario.times.window_s,
    })
}

/// Returns what the server says of its version on the relay's host, which with namespaces is this machine.
fn version(server: &Server, source: &Source) -> Result<String> {
    let Some(line) = &server.version else {
        return Ok("version not known".to_owned());
    };
    let (prefix, turnbuckle) = match source {
        Source::Namespaces { turnbuckle, .. } => (Vec::new(), turnbuckle.clone()),
        Source::Machines(file) => (file.relay_prefix()?, file.addresses()?.turnbuckle_on_relay),
    };
    let host = crate::host::Host::new("relay", &prefix, "0".parse().map_err(anyhow::Error::msg)?)?;
    host.run(&Values(vec![("turnbuckle", turnbuckle)]).fill(line.clone())?)
}

/// Prints the command lines of one run of each scenario with each server.
fn print_commands(arguments: &Arguments, suite: &Suite) -> Result<()> {
    let addresses: Addresses = match &arguments.hosts {
        Some(path) => HostsFile::read(path)?.addresses()?,
        None => namespace_addresses(&own_program()?, &instruments(arguments)?),
    };
    let mut text = String::new();
    for scenario in &suite.scenarios {
        let cell = first_cell(Some(scenario))?;
        for server in suite.servers_of(scenario) {
            let Some(case) = first_case(Some(scenario), server, cell.as_ref()) else {
                continue;
            };
            let commands = commands(&case, &addresses, 1, "/tmp")?;
            text.push_str(&format!("# {} with {}\n", scenario.name, server.name));
            for (host, words) in [
                ("relay", commands.server.as_ref()),
                ("peer", Some(&commands.peer)),
                ("peer", commands.meanwhile_peer.as_ref()),
                ("load", commands.meanwhile.as_ref()),
                ("load", Some(&commands.load)),
            ] {
                if let Some(words) = words.filter(|words| !words.is_empty()) {
                    text.push_str(&format!("{host:5} $ {}\n", shell_words::join(words)));
                }
            }
        }
    }
    say(&text);
    Ok(())
}
