//! `turnbuckle load negative`: unusual and malformed messages, each with the answer that the RFCs want.
//!
//! Where the attacks ask whether a server can be abused, these ask whether it answers as it should. A check is a row of a table: what is
//! sent, and which answers are right, among them none ([`NO_ANSWER`]). [`requests`] are well-formed messages that make no sense,
//! [`protocol`] messages that are none. After every one the server must still answer an honest request.

mod protocol;
mod requests;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use serde_json::json;
use turnbuckle_wire::{Class, Message, MessageWriter, Method};

use crate::output;
use turnbuckle_client::Credentials;
use turnbuckle_client::blocking::{Answer, Session, Target, code, plain};
use turnbuckle_client::{TCP, UDP};

/// Where TLS and DTLS are spoken (RFC 8656 §3.1).
const TLS_PORT: u16 = 5349;
/// Stands for silence where codes are listed.
const NO_ANSWER: u16 = 0;
/// Stands for a success response.
const SUCCESS: u16 = 200;
/// How long an honest request behind a bad one may take, and how often it is sent.
const HONEST_WAIT: Duration = Duration::from_millis(500);
const HONEST_SENDS: u32 = 4;
/// How long an answer that is not to come may be behind that of the request sent after it.
const STRAGGLER_WAIT: Duration = Duration::from_millis(20);

/// Which of coturn's flags a check belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// `-N`: well-formed messages that make no sense.
    Requests,
    /// `-R`: messages that are none.
    Protocol,
}

impl Group {
    fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Protocol => "protocol",
        }
    }
}

/// Whom to try, and how.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) server: SocketAddr,
    pub(crate) credentials: Credentials,
    /// A peer that the server lets clients reach; without one the checks that need it are left out.
    pub(crate) peer: Option<SocketAddr>,
    /// Of what is made up.
    pub(crate) seed: u64,
    pub(crate) groups: Vec<Group>,
}

/// What checks share.
struct Context {
    target: Arc<Target>,
    peer: Option<SocketAddr>,
    random: RefCell<SmallRng>,
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Miss {
    /// The server did something else than it should.
    Wrong(String),
    /// The check takes what is not here.
    NotTried(String),
}

impl From<io::Error> for Miss {
    fn from(error: io::Error) -> Self {
        Self::Wrong(format!("cannot be sent: {error}"))
    }
}

type Outcome = Result<(), Miss>;

/// Adds attributes to a request. The address is the peer's.
type Build = fn(&mut MessageWriter<'_>, SocketAddr);

/// What is sent.
enum Act {
    /// An Allocate request with credentials and, beside REQUESTED-TRANSPORT, these attributes.
    Allocate(fn(&mut MessageWriter<'_>)),
    /// A request with credentials of a client without an allocation.
    Stranger(Method, Build),
    /// A request with credentials of a client with an allocation.
    Holder(Method, Build),
    /// The same, and the peer must be one that the server allows.
    HolderWithPeer(Method, Build),
    /// The same on a TCP allocation (RFC 6062), by TCP.
    TcpHolder(Method, Build),
    /// Bytes of a client without an allocation.
    Bytes(fn() -> Vec<u8>),
    /// Bytes of a client with an allocation, made of an honest Refresh request of its own.
    Spoiled(fn(Vec<u8>) -> Vec<u8>),
    /// More than one message.
    Dialog(fn(&Context) -> Outcome),
}

/// One row.
struct Check {
    name: &'static str,
    /// Where the answer is prescribed.
    section: &'static str,
    /// Right answers; empty where the dialog knows.
    right: &'static [u16],
    act: Act,
}

impl Check {
    const fn new(
        name: &'static str,
        section: &'static str,
        right: &'static [u16],
        act: Act,
    ) -> Self {
        Self {
            name,
            section,
            right,
            act,
        }
    }

    fn run(&self, context: &Context) -> Outcome {
        match &self.act {
            Act::Allocate(build) => {
                let mut session = Session::udp(&context.target)?;
                let answer = session.request(Method::ALLOCATE, build);
                if code(answer.as_ref()) == SUCCESS {
                    let _ = session.refresh(0);
                }
                self.judge(code(answer.as_ref()))
            }
            Act::Stranger(method, build) => {
                let mut session = Session::udp(&context.target)?;
                let peer = context.any_peer();
                let answer = session.request(*method, |writer| build(writer, peer));
                self.judge(code(answer.as_ref()))
            }
            Act::Holder(method, build) => {
                let peer = context.any_peer();
                let answer = context
                    .allocated()?
                    .request(*method, |writer| build(writer, peer));
                self.judge(code(answer.as_ref()))
            }
            Act::HolderWithPeer(method, build) => {
                let peer = context.allowed_peer()?;
                let answer = context
                    .allocated()?
                    .request(*method, |writer| build(writer, peer));
                self.judge(code(answer.as_ref()))
            }
            Act::TcpHolder(method, build) => {
                let peer = context.any_peer();
                let answer = context
                    .tcp_allocated()?
                    .request(*method, |writer| build(writer, peer));
                self.judge(code(answer.as_ref()))
            }
            Act::Bytes(build) => {
                let mut session = Session::udp(&context.target)?;
                self.judge(answer_to(&mut session, &build())?)
            }
            Act::Spoiled(spoil) => {
                let mut session = context.allocated()?;
                let honest = session.signed(Method::REFRESH, |writer| {
                    writer.lifetime(600);
                });
                self.judge(answer_to(&mut session, &spoil(honest))?)
            }
            Act::Dialog(dialog) => dialog(context),
        }
    }

    fn judge(&self, code: u16) -> Outcome {
        is_one_of(code, self.right)
    }
}

/// Passes if `code` is right.
fn is_one_of(code: u16, right: &[u16]) -> Outcome {
    if right.contains(&code) {
        return Ok(());
    }
    let allowed: Vec<_> = right.iter().map(|&code| name_of(code)).collect();
    let text = format!("{}, not {}", name_of(code), allowed.join(" or "));
    Err(Miss::Wrong(text))
}

fn name_of(code: u16) -> String {
    match code {
        NO_ANSWER => "no answer".to_owned(),
        SUCCESS => "success".to_owned(),
        code => code.to_string(),
    }
}

fn wrong<T>(text: impl Into<String>) -> Result<T, Miss> {
    Err(Miss::Wrong(text.into()))
}

/// Sends bytes and an honest request behind them: the code of what comes to the first, and that something comes to the second.
fn answer_to(session: &mut Session, bytes: &[u8]) -> Result<u16, Miss> {
    let honest = plain(Class::Request, Method::BINDING, |_| {});
    let id = honest.get(8..20);
    session.send(bytes);
    let mut answer = NO_ANSWER;
    let mut is_alive = false;
    for _ in 0..HONEST_SENDS {
        session.send(&honest);
        let mut wait = HONEST_WAIT;
        while let Some(message) = session.receive(wait) {
            if message.get(8..20) == id {
                is_alive = true;
                wait = STRAGGLER_WAIT;
            } else {
                answer = Answer(message).code().max(1);
            }
        }
        if is_alive {
            return Ok(answer);
        }
    }
    wrong("the server does not answer an honest request afterwards")
}

/// A client with an allocation, which it gives back.
struct Holder(Session);

impl std::ops::Deref for Holder {
    type Target = Session;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl std::ops::DerefMut for Holder {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // 437 if the check was about its end.
        let _ = self.0.refresh(0);
    }
}

impl Context {
    fn allocated(&self) -> Result<Holder, Miss> {
        Ok(self.allocated_with(|_| {})?.0)
    }

    fn allocated_with(
        &self,
        build: impl Fn(&mut MessageWriter<'_>),
    ) -> Result<(Holder, Answer), Miss> {
        let mut session = Session::udp(&self.target)?;
        match session.allocate(UDP, build) {
            Ok(answer) => Ok((Holder(session), answer)),
            Err(code) => wrong(format!("{} to an honest Allocate request", name_of(code))),
        }
    }

    fn tcp_allocated(&self) -> Result<Holder, Miss> {
        let Ok(mut session) = Session::tcp(&self.target) else {
            return Err(Miss::NotTried("the server has no TCP listener".to_owned()));
        };
        match session.allocate(TCP, |_| {}) {
            Ok(_) => Ok(Holder(session)),
            Err(code) => Err(Miss::NotTried(format!(
                "the server answers {} to a TCP allocation",
                name_of(code)
            ))),
        }
    }

    fn allowed_peer(&self) -> Result<SocketAddr, Miss> {
        let missing = || Miss::NotTried("needs a --peer that the server allows".to_owned());
        self.peer.ok_or_else(missing)
    }

    /// Returns a peer where it does not matter whether the server allows it.
    fn any_peer(&self) -> SocketAddr {
        self.peer.unwrap_or_else(|| ([192, 0, 2, 1], 9).into())
    }
}

/// What a run says.
#[derive(Default)]
pub(crate) struct NegativeReport {
    rows: Vec<Row>,
}

struct Row {
    group: Group,
    name: &'static str,
    section: &'static str,
    outcome: Outcome,
}

impl Row {
    fn verdict(&self) -> (&'static str, &str) {
        match &self.outcome {
            Ok(()) => ("passed", ""),
            Err(Miss::Wrong(text)) => ("FAILED", text),
            Err(Miss::NotTried(text)) => ("not tried", text),
        }
    }

    fn sentence(&self) -> String {
        let (verdict, text) = self.verdict();
        let colon = if text.is_empty() { "" } else { ": " };
        format!("{verdict:<9} {} ({}){colon}{text}", self.name, self.section)
    }
}

impl NegativeReport {
    /// Returns whether nothing failed.
    pub(crate) fn is_clean(&self) -> bool {
        self.count("FAILED") == 0
    }

    fn count(&self, verdict: &str) -> usize {
        let is_counted = |row: &&Row| row.verdict().0 == verdict;
        self.rows.iter().filter(is_counted).count()
    }

    /// Returns lines for people: one for each check, and one for all.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.rows.iter().map(Row::sentence).collect();
        lines.push(format!(
            "{} passed, {} failed, {} not tried",
            self.count("passed"),
            self.count("FAILED"),
            self.count("not tried")
        ));
        lines
    }

    /// Prints it for people, or for programs as a line of JSON.
    pub(crate) fn print(&self, is_json: bool) {
        if !is_json {
            self.lines().iter().for_each(|line| output::line(line));
            return;
        }
        let rows = self.rows.iter().map(|row| {
            let (verdict, detail) = row.verdict();
            json!({
                "group": row.group.name(),
                "check": row.name,
                "section": row.section,
                "verdict": verdict.to_lowercase(),
                "detail": detail,
            })
        });
        output::event(&json!({
            "event": "result",
            "mode": "negative",
            "passed": self.count("passed"),
            "failed": self.count("FAILED"),
            "not_tried": self.count("not tried"),
            "checks": rows.collect::<Vec<_>>(),
        }));
    }
}

/// Runs the checks, one after the other.
///
/// # Errors
/// The server does not answer, or does not let the user allocate: then no answer would mean anything.
pub(crate) fn run(task: &Task) -> anyhow::Result<NegativeReport> {
    let context = Context {
        target: Arc::new(Target::new(
            task.server,
            TLS_PORT,
            task.credentials.clone(),
        )?),
        peer: task.peer,
        random: RefCell::new(SmallRng::seed_from_u64(task.seed)),
    };
    if let Err(Miss::Wrong(text)) = context.allocated().map(drop) {
        anyhow::bail!("{}: {text}", task.server);
    }
    let mut report = NegativeReport::default();
    for &group in &task.groups {
        let checks: &[Check] = match group {
            Group::Requests => &requests::CHECKS,
            Group::Protocol => &protocol::CHECKS,
        };
        for check in checks {
            report.rows.push(Row {
                group,
                name: check.name,
                section: check.section,
                outcome: check.run(&context),
            });
        }
    }
    Ok(report)
}

/// Returns the message of an answer that must be one.
fn parsed(answer: &Answer) -> Result<Message<'_>, Miss> {
    answer
        .message()
        .map_or_else(|| wrong("the answer is no message"), Ok)
}
