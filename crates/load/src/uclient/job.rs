//! What a line of turnutils_uclient comes to: packets through UDP relays, or bytes through TCP relays.

use crate::load::{Arguments, Mode, Run, Summary, Totals, tcp_relay};
use crate::stop::Stop;

/// A run of either kind.
pub(super) enum Job {
    Packets(Box<Run>),
    Connections(Box<tcp_relay::Run>),
}

impl Job {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread cannot be started, or a socket not be opened.
    pub(super) fn open(arguments: &Arguments) -> anyhow::Result<Self> {
        Ok(if arguments.mode == Mode::TcpRelay {
            Self::Connections(Box::new(tcp_relay::Run::open(arguments)?))
        } else {
            Self::Packets(Box::new(Run::open(arguments)?))
        })
    }

    /// Waits until every client has what it needs, or will not get it.
    ///
    /// # Errors
    /// None has it.
    pub(super) fn open_clients(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Packets(run) => run.open_clients(),
            Self::Connections(run) => run.open_clients(),
        }
    }

    /// Returns why clients have nothing, and how many.
    pub(super) fn clients_failed(&self) -> Vec<(String, u64)> {
        match self {
            Self::Packets(run) => run.clients_failed(),
            Self::Connections(run) => run.clients_failed(),
        }
    }

    /// Returns how many data connections there are; `None` in a run through UDP relays.
    pub(super) fn connections(&self) -> Option<usize> {
        match self {
            Self::Packets(_) => None,
            Self::Connections(run) => Some(run.clients_ready()),
        }
    }

    /// Describes for people how the run is done.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Packets(run) => run.describe(),
            Self::Connections(run) => format!("{} connections", run.clients_ready()),
        }
    }

    /// Sends until all is sent, or a signal comes.
    pub(super) fn measure(&mut self, stop: &Stop, show: &dyn Fn(u64, &Totals)) {
        match self {
            Self::Packets(run) => run.measure(stop, show),
            Self::Connections(run) => run.measure(stop, show),
        }
    }

    /// Gives up: releases what there is and reports nothing.
    pub(super) fn close(self) {
        match self {
            Self::Packets(run) => run.close(),
            Self::Connections(run) => run.close(),
        }
    }

    /// Ends the run and returns its figures.
    ///
    /// # Errors
    /// A thread ended before its time.
    pub(super) fn finish(self) -> anyhow::Result<Summary> {
        Ok(match self {
            Self::Packets(run) => run.finish()?.summary(),
            Self::Connections(run) => run.finish()?.summary(),
        })
    }
}
