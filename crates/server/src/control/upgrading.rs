//! An upgrade, by the relay: the wish goes to the keeper, its answer to whoever wishes it. Calls go on meanwhile.

use std::sync::mpsc::SyncSender;

use super::events::Event;
use crate::handle::{Reply, Tried, Upgrade};
use crate::survive::Survival;

/// How far an upgrade is.
pub(super) struct Upgrading {
    events: SyncSender<Event>,
    /// Who waits for the keeper's answer.
    reply: Option<Reply<Result<Tried, String>>>,
    is_dry_run: bool,
    /// Whether the keeper has a program that can take over.
    is_agreed: bool,
}

impl Upgrading {
    pub(super) fn new(events: SyncSender<Event>) -> Self {
        Self {
            events,
            reply: None,
            is_dry_run: false,
            is_agreed: false,
        }
    }

    /// Has the keeper try a program.
    pub(super) fn begin(
        &mut self,
        upgrade: &Upgrade,
        survival: Option<&Survival>,
        reply: Reply<Result<Tried, String>>,
    ) {
        let Some(survival) = survival else {
            reply(Err(
                "an upgrade that keeps calls needs `survive=on`, from the start of the server on; without it drain and \
                 restart"
                    .to_owned(),
            ));
            return;
        };
        if self.reply.is_some() {
            reply(Err("another upgrade is under way".to_owned()));
            return;
        }
        self.is_agreed = false;
        self.is_dry_run = upgrade.is_dry_run;
        match survival.wish(upgrade, self.events.clone()) {
            Ok(()) => self.reply = Some(reply),
            Err(error) => reply(Err(format!("the keeper cannot be asked: {error}"))),
        }
    }

    /// Takes the keeper's answer.
    pub(super) fn answered(&mut self, answer: Result<Tried, String>) {
        self.is_agreed = answer.is_ok() && !self.is_dry_run;
        if let Some(reply) = self.reply.take() {
            reply(answer);
        }
    }

    /// Returns whether there is a program to hand over to.
    pub(super) fn is_agreed(&self) -> bool {
        self.is_agreed
    }
}
