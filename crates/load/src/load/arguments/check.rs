//! What is wrong with a command line: what is missing, and what does not go together.

use turnbuckle_client::Transport;

use super::{Arguments, Mode};
use crate::cli::{BackendChoice, Threads};
use crate::reach::Reach;

impl Arguments {
    /// Returns, as an error, what is missing or does not go together, in a sentence.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mode = self.mode.name();
        if self.lacks.direct && !self.mode.has_packets() {
            return Err(format!("{mode} is about a server; --direct has none"));
        }
        if !self.lacks.direct && self.ends.server.is_none() {
            return Err("--server is missing (or --direct, for a run without one)".to_owned());
        }
        self.check_transport()?;
        self.check_allocations()?;
        let to = self.ends.server.or_else(|| self.ends.peer.first().copied());
        if let (Some(local), Some(to)) = (self.machine.local, to)
            && local.is_ipv4() != to.is_ipv4()
        {
            return Err(format!(
                "--local {local} does not lead to {to}: one is IPv4, the other IPv6"
            ));
        }
        if self.lacks.direct
            && self
                .ends
                .peer
                .iter()
                .any(|peer| Some(peer.is_ipv4()) != to.map(|to| to.is_ipv4()))
        {
            return Err("--direct: the addresses of --peer must be of one family".to_owned());
        }
        if self.flows.pairs && !self.mode.has_packets() {
            return Err(format!("{mode} sends no packets; --pairs has no use"));
        }
        if self.flows.pairs && !self.volume.clients.is_multiple_of(2) {
            return Err("--pairs: --clients must be even".to_owned());
        }
        if self.mode == Mode::TcpRelay {
            for (is_given, option, why) in [
                (self.lacks.direct, "--direct", "there is no relay then"),
                (
                    self.form.indications,
                    "--indications",
                    "bytes of a connection have no headers",
                ),
                (
                    self.flows.dont_fragment,
                    "--dont-fragment",
                    "RFC 6062 §5.1 forbids it",
                ),
                (
                    self.lacks.no_receive,
                    "--no-receive",
                    "what is not read stops the sender",
                ),
                (self.pace.burst > 1, "--burst", "a stream has no bursts"),
            ] {
                if is_given {
                    return Err(format!("tcp-relay does not go with {option}: {why}"));
                }
            }
        } else if self.flows.passive {
            return Err(format!("--passive is for tcp-relay, not for {mode}"));
        }
        if self.mode.has_packets()
            && self.ends.peer.is_empty()
            && !self.flows.pairs
            && !self.flows.passive
        {
            return Err(format!("{mode} needs a --peer to send to"));
        }
        let has_credentials =
            self.who.user.is_some() || self.who.secret.is_some() || self.who.credentials.is_some();
        if !self.lacks.direct && self.mode != Mode::Invalid && !has_credentials {
            return Err(format!(
                "{mode} needs --user NAME:PASSWORD or --secret SECRET"
            ));
        }
        if self
            .who
            .user
            .as_ref()
            .is_some_and(|user| !user.contains(':'))
        {
            return Err("--user: allowed: NAME:PASSWORD".to_owned());
        }
        if self.mode == Mode::Rate && self.pace.rate.is_none() {
            return Err(
                "rate needs a --rate, packets per second of all clients together".to_owned(),
            );
        }
        if matches!(self.mode, Mode::Packet | Mode::Alloc | Mode::Negative)
            && self.pace.rate.is_some()
        {
            return Err(format!(
                "{mode} goes as fast as it can; --rate is for rate, mix, hold, tcp-relay and invalid"
            ));
        }
        if self.pace.duration.is_zero() {
            return Err("--duration: allowed: more than 0 seconds".to_owned());
        }
        Ok(())
    }

    /// Returns, as an error, what is wrong with moves and dual allocations.
    fn check_allocations(&self) -> Result<(), String> {
        let mode = self.mode.name();
        let has_calls = self.mode.has_packets() && self.mode != Mode::TcpRelay;
        if self.moves().is_some() {
            if !has_calls {
                return Err(format!(
                    "--move-every is for allocations that are kept, and for packets; {mode} has none of these"
                ));
            }
            if !matches!(self.ends.transport, Reach::UDP | Reach::Masque) {
                return Err(format!(
                    "--move-every is by UDP; a connection by {} cannot go to another port",
                    self.ends.transport.as_str()
                ));
            }
            if self.machine.sender_threads != Threads::Auto {
                return Err(
                    "--sender-threads: the threads of clients that move send as well; there is --listener-threads"
                        .to_owned(),
                );
            }
            if self.flows.move_every.is_some_and(|every| every.is_zero()) {
                return Err("--move-every: allowed: more than 0 seconds".to_owned());
            }
        }
        if self.flows.dual && !has_calls {
            return Err(format!(
                "--dual is for packets by both addresses; {mode} has none"
            ));
        }
        let has = |is_v6: bool| self.ends.peer.iter().any(|peer| peer.is_ipv6() == is_v6);
        if self.flows.dual && !self.habits.uses_one_of_two && !(has(false) && has(true)) {
            return Err("--dual needs a --peer of IPv4 and one of IPv6".to_owned());
        }
        Ok(())
    }

    fn check_transport(&self) -> Result<(), String> {
        let transport = self.ends.transport.as_str();
        if self.mode == Mode::Negative && self.ends.transport != Reach::UDP {
            return Err("negative chooses by itself how it reaches the server".to_owned());
        }
        if self.mode == Mode::TcpRelay
            && matches!(
                self.ends.transport,
                Reach::Turn(Transport::Dtls) | Reach::Masque
            )
        {
            return Err(format!(
                "tcp-relay reaches the server by TCP or TLS, not by {transport}"
            ));
        }
        self.check_tunnels()?;
        if self.mode == Mode::TcpRelay && self.machine.sender_threads != Threads::Auto {
            return Err(
                "--sender-threads: with tcp-relay those that receive send as well; there is --listener-threads"
                    .to_owned(),
            );
        }
        if self.ends.transport == Reach::UDP {
            // nothing is excluded
        } else if self.lacks.direct {
            return Err(format!("--direct is by UDP; {transport} leads to a server"));
        } else if self.mode == Mode::Invalid {
            return Err(format!("invalid is by UDP; it has no use for {transport}"));
        } else if self.machine.sender_threads != Threads::Auto {
            return Err(format!(
                "--sender-threads: with {transport} those that receive send as well; there is --listener-threads"
            ));
        } else if self.ends.transport.is_stream() && self.machine.backend != BackendChoice::AUTO {
            return Err(format!(
                "--backend is about datagrams; {transport} has none"
            ));
        }
        for (option, is_given) in [
            ("--ca-file", self.ends.ca_file.is_some()),
            ("--tls-name", self.ends.tls_name.is_some()),
        ] {
            if is_given && !self.ends.transport.is_secure() {
                return Err(format!(
                    "{option} is about certificates; {transport} has none"
                ));
            }
        }
        Ok(())
    }

    /// Returns, as an error, what does not go with tunnels in place of allocations.
    fn check_tunnels(&self) -> Result<(), String> {
        if self.ends.transport != Reach::Masque {
            return match self.ends.tunnels {
                1 => Ok(()),
                _ => Err("--tunnels is for --transport masque".to_owned()),
            };
        }
        if !self.mode.has_packets() {
            return Err(format!(
                "{} is about TURN; by masque there are packet, rate, mix and hold",
                self.mode.name()
            ));
        }
        for (is_given, option, why) in [
            (
                self.flows.pairs,
                "--pairs",
                "a client does not know where its tunnel ends",
            ),
            (self.flows.dual, "--dual", "a tunnel has one target"),
            (
                self.flows.dont_fragment,
                "--dont-fragment",
                "tunnels never fragment",
            ),
            (
                self.form.indications,
                "--indications",
                "a tunnel has no indications",
            ),
            (self.form.family.is_some(), "--family", "it is the target's"),
        ] {
            if is_given {
                return Err(format!("masque does not go with {option}: {why}"));
            }
        }
        Ok(())
    }
}
