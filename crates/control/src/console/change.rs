//! Changes of the configuration that holds, until it is read again or the relay is started anew.

use std::sync::atomic::Ordering::Relaxed;

use turnbuckle_server::config::Edit;

use super::Console;
use super::conversation::{Gone, Screen, Visitor};
use super::pc::{self, on_or_off};
use crate::asking::ask;
use crate::health;

/// Flags that are switched while the relay runs.
pub(super) const TOGGLEABLE: [&str; 7] = [
    "stun-only",
    "no-stun",
    "secure-stun",
    "no-udp-relay",
    "no-tcp-relay",
    "allow-loopback-peers",
    "mobility",
];

/// Numbers that are changed while the relay runs.
pub(super) const CHANGEABLE: [&str; 5] = [
    "total-quota",
    "user-quota",
    "max-bps",
    "bps-capacity",
    SESSIONS_SHOWN,
];

/// The number that is the console's own.
const SESSIONS_SHOWN: &str = "cli-max-output-sessions";

/// Switches a flag.
pub(super) async fn toggle(
    console: &Console,
    visitor: &Visitor,
    screen: &mut Screen,
    name: &str,
) -> Result<(), Gone> {
    if !TOGGLEABLE.contains(&name) {
        for line in [
            "",
            &format!("  Error: unknown or constant parameter: {name}."),
            "  You can toggle only the following parameters:",
            "",
        ] {
            screen.line(line).await?;
        }
        for name in TOGGLEABLE {
            let is_on = pc::flag(console, name).await;
            screen
                .line(&format!("  {name}: {}", on_or_off(is_on)))
                .await?;
        }
        return screen.line("").await;
    }
    let is_on = !pc::flag(console, name).await;
    let edit = Edit::set(name, is_on.to_string());
    let line = match apply(console, visitor, edit, &format!("tc {name}")).await {
        Ok(()) => format!("  {name}: {}", on_or_off(is_on)),
        Err(why) => format!("  Error: {why}"),
    };
    screen.line(&line).await
}

/// Changes a number: its name and its value, with a blank between them.
pub(super) async fn change(
    console: &Console,
    visitor: &Visitor,
    screen: &mut Screen,
    words: &str,
) -> Result<(), Gone> {
    let (name, value) = words.split_once(' ').unwrap_or((words, ""));
    let value = value.trim();
    if !CHANGEABLE.contains(&name) {
        screen.line("").await?;
        let line = format!("  Error: unknown or constant parameter: {words}.");
        screen.line(&line).await?;
        return screen.line("").await;
    }
    let what = format!("cc {name} {value}");
    let changed = match value.parse::<u32>() {
        Err(_) => Err(format!("`{value}` is no number from 0 to {}", u32::MAX)),
        Ok(number) if name == SESSIONS_SHOWN => {
            let noted = visitor.note(console, &what).await;
            noted.map(|()| console.sessions_max.store(number, Relaxed))
        }
        Ok(number) => apply(console, visitor, Edit::set(name, number.to_string()), &what).await,
    };
    let line = match changed {
        Ok(()) => format!("  {name}: {value} (**)"),
        Err(why) => format!("  Error: {why}"),
    };
    screen.line(&line).await
}

/// Adds an alternate server, or deletes it.
pub(super) async fn alternate(
    console: &Console,
    visitor: &Visitor,
    key: &str,
    port: u16,
    is_added: bool,
    server: &str,
) -> Result<(), String> {
    let (verb, edit) = match is_added {
        true => ("add", Edit::add(key, server.to_owned())),
        false => {
            let with_port = format!("{server}:{port}");
            let without = server.strip_suffix(&format!(":{port}")).unwrap_or(server);
            let spellings = [server, &with_port, without].map(str::to_owned);
            ("delete", Edit::remove(key, spellings.into()))
        }
    };
    apply(console, visitor, edit, &format!("{verb} {key} {server}")).await
}

/// Has the relay apply a change.
async fn apply(console: &Console, visitor: &Visitor, edit: Edit, what: &str) -> Result<(), String> {
    visitor.note(console, what).await?;
    let changed = ask(|reply| console.commands.change(edit.clone(), reply)).await;
    let report = changed.ok_or_else(|| "the relay takes no command now".to_owned())?;
    report?;
    // The shards have their new settings before they answer this.
    match health::silent_shards(&console.commands).await.first() {
        Some(shard) => Err(format!("shard {shard} does not answer")),
        None => Ok(()),
    }
}
