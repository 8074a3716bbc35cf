//! `turnbuckle ctl upgrade`: has a program tried, and waits until it serves or the one before is put back.

use std::path::Path;
use std::time::Duration;

use form_urlencoded::Serializer;
use hyper::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::client::{Client, Failure};
use super::{Call, show};

/// Time between two looks at who serves.
const LOOK: Duration = Duration::from_millis(50);

/// Time that the relay before takes to end, and one that is put back to serve.
const GRACE: Duration = Duration::from_secs(20);

impl Call {
    pub(super) async fn upgrade(
        &self,
        program: Option<&Path>,
        within: u64,
        is_dry_run: bool,
    ) -> Result<(), Failure> {
        let mut query = Serializer::new(String::new());
        if let Some(program) = program {
            let program = std::path::absolute(program)
                .map_err(|error| Failure::Refused(format!("{}: {error}", program.display())))?;
            query.append_pair("program", &program.to_string_lossy());
        }
        query.append_pair("seconds", &within.to_string());
        query.append_pair("dry_run", &is_dry_run.to_string());
        let within = Duration::from_secs(within);
        // A trial takes as long at most.
        let client = Client {
            socket: self.client.socket.clone(),
            patience: self.client.patience + within,
        };
        let path = format!("/v1/upgrade?{}", query.finish());
        let tried = client.ask(Method::POST, &path).await?;
        if is_dry_run {
            return self.say(&tried, |tried| format!("{}\n", can(tried)));
        }
        if !self.as_json {
            self.say(&tried, |tried| format!("{}; it takes over\n", can(tried)))?;
        }
        let info = self.outcome(&tried["number"], within + GRACE).await?;
        let upgrade = &info["upgrade"];
        if let Some(why) = upgrade["put_back"].as_str() {
            return Err(Failure::Refused(format!(
                "{why}; turnbuckle {} goes on, process {}, with {} allocations taken over and {} lost",
                show::text(&upgrade["from"]),
                show::text(&info["pid"]),
                show::text(&upgrade["taken_over"]),
                show::text(&upgrade["not_taken_over"]),
            )));
        }
        let done = json!({ "tried": tried, "info": info });
        self.say(&done, |_| {
            format!(
                "turnbuckle {} serves, process {}: {} allocations taken over, {} lost\n",
                show::text(&info["version"]),
                show::text(&info["pid"]),
                show::text(&upgrade["taken_over"]),
                show::text(&upgrade["not_taken_over"]),
            )
        })
    }

    /// Waits for a relay that says what has come of this upgrade.
    async fn outcome(&self, number: &Value, longest: Duration) -> Result<Value, Failure> {
        let deadline = Instant::now() + longest;
        loop {
            match self.client.ask(Method::GET, "/v1/info").await {
                Ok(info) if info["upgrade"]["number"] == *number => return Ok(info),
                Ok(_) | Err(Failure::Unreachable(_)) if Instant::now() < deadline => {
                    sleep(LOOK).await;
                }
                Ok(_) | Err(Failure::Unreachable(_)) => {
                    let seconds = longest.as_secs();
                    return Err(Failure::Late(format!(
                        "no relay has said within {seconds} s what the upgrade has come to; its log does"
                    )));
                }
                Err(failure) => return Err(failure),
            }
        }
    }
}

/// Says what a program can take over that was tried.
fn can(tried: &Value) -> String {
    format!(
        "{} (turnbuckle {}) can take over {} allocations; {} of them wait for clients by TCP, TLS and DTLS to come back, {} end",
        show::text(&tried["program"]),
        show::text(&tried["to"]),
        show::text(&tried["allocations"]),
        show::text(&tried["waiting"]),
        show::text(&tried["ending"]),
    )
}
