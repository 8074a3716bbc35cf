//! What the thread that follows a database tells while connections are killed, the server is not there, or it hangs.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use turnbuckle_users::{
    Changed, DatabaseError, Follower, Names, Notice, Records, Source, Target, Then,
};

use crate::support::{Server, all};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A follower, and what it says.
struct Following {
    follower: Follower,
    target: Target,
    said: Receiver<Said>,
}

#[derive(Debug)]
enum Said {
    /// How many users of `r` there are, and what has changed.
    Read(usize, Changed),
    /// Who was read last, said on demand.
    Asked(usize),
    Trouble(DatabaseError),
}

impl Following {
    fn start(source: &Source) -> Self {
        let (tell, said) = channel();
        let target = Target {
            source: source.clone(),
            wanted: all(),
        };
        let known = |records: &Records| records.users.get("r").map_or(0, |users| users.len());
        let follower = Follower::start(target.clone(), move |notice| {
            let sent = match notice {
                Notice::Records(read, changed) => {
                    tell.send(Said::Read(known(read.records), changed))
                }
                Notice::Asked(records) => tell.send(Said::Asked(known(records))),
                Notice::Trouble(error) => tell.send(Said::Trouble(error)),
                Notice::Addresses(_) | Notice::Answer(..) | Notice::Same(_) => Ok(()),
            };
            match sent {
                Ok(()) => Then::GoOn,
                Err(_) => Then::End,
            }
        });
        Self {
            follower: follower.expect("a thread"),
            target,
            said,
        }
    }

    fn next(&self) -> Said {
        self.said.recv_timeout(PATIENCE).expect("a word")
    }

    /// Waits until something is read. Returns how many users there are, what has changed, and what kept it from being read before.
    fn await_read(&self) -> (usize, Changed, Vec<DatabaseError>) {
        let mut troubles = Vec::new();
        loop {
            match self.next() {
                Said::Read(known, changed) => return (known, changed, troubles),
                Said::Trouble(error) => troubles.push(error),
                Said::Asked(_) => panic!("nobody has asked"),
            }
        }
    }

    fn await_trouble(&self) -> DatabaseError {
        match self.next() {
            Said::Trouble(error) => error,
            other => panic!("{other:?}"),
        }
    }

    /// Returns how many users are known now, whatever the database does.
    fn known(&self) -> usize {
        self.follower.follow(self.target.clone());
        loop {
            match self.next() {
                Said::Asked(known) => return known,
                Said::Trouble(_) => {}
                Said::Read(..) => panic!("the database cannot be read"),
            }
        }
    }

    /// Adds a user, who is the only one that is news.
    fn await_new(
        &self,
        known: usize,
        name: &str,
        execute: &mut dyn FnMut(&str),
    ) -> Vec<DatabaseError> {
        execute(&format!(
            "insert into turnusers_lt values('r','{name}','none')"
        ));
        let (now_known, changed, troubles) = self.await_read();
        let names = Names::from([("r".to_owned(), [name.to_owned()].into())]);
        let tables = false;
        assert_eq!(
            (now_known, changed),
            (known, Changed::Users { names, tables })
        );
        troubles
    }
}

const THREE_USERS: &str =
    "insert into turnusers_lt values('r','alice','none'),('r','bob','none'),('r','carol','none')";

/// Fails unless users of a server that is not there at first, and goes away later, are read when it comes, and stay when it goes.
pub(crate) fn a_server_that_is_away_takes_nobody_along(
    source: &Source,
    server: &mut Server,
    execute: &mut dyn FnMut(&str),
) {
    execute(THREE_USERS);
    server.stop();
    let following = Following::start(source);
    let error = following.await_trouble();
    assert!(!error.is_permanent(), "{error}");
    assert_eq!(following.known(), 0);
    server.start_again(source);
    let (known, changed, _) = following.await_read();
    assert_eq!((known, changed), (3, Changed::Everything));
    server.stop();
    let error = following.await_trouble();
    assert!(!error.is_permanent(), "{error}");
    assert_eq!(following.known(), 3);
    server.start_again(source);
    following.await_new(4, "dave", execute);
}

/// Fails unless users of a server that hangs stay, and what is new when it goes on is the only news.
pub(crate) fn a_server_that_hangs_takes_nobody_along(
    source: &Source,
    server: &Server,
    execute: &mut dyn FnMut(&str),
) {
    execute(THREE_USERS);
    let following = Following::start(source);
    let (known, changed, troubles) = following.await_read();
    assert_eq!((known, changed), (3, Changed::Everything));
    assert!(troubles.is_empty(), "{troubles:?}");
    server.hang();
    for _ in 0..2 {
        let error = following.await_trouble();
        let is_silence = error.to_string().contains("no answer within");
        assert!(is_silence && !error.is_permanent(), "{error}");
        assert_eq!(following.known(), 3);
    }
    server.go_on();
    following.await_new(4, "dave", execute);
}

/// Fails unless after each of twenty kills a connection is made anew, and what is new is named alone; none stays open.
pub(crate) fn killed_connections_are_made_anew(
    source: &Source,
    server: &Server,
    execute: &mut dyn FnMut(&str),
    kill: &mut dyn FnMut(),
) {
    let following = Following::start(source);
    let (known, changed, troubles) = following.await_read();
    assert_eq!((known, changed), (1000, Changed::Everything));
    assert!(troubles.is_empty(), "{troubles:?}");
    for round in 1..=20 {
        kill();
        let name = format!("round{round}");
        let troubles = following.await_new(1000 + round, &name, execute);
        assert!(!troubles.is_empty(), "the connection was killed");
        for error in troubles {
            assert!(!error.is_permanent(), "{error}");
        }
    }
    assert!(
        connections_to(server.port) <= 2,
        "one to follow, one to ask"
    );
}

/// Returns how many connections to a port of this machine are open at the end that began them.
fn connections_to(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux");
    let port = format!(":{port:04X}");
    let lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    // The third column is the other end, the fourth the state: established, or closed by the other end alone.
    lines
        .filter(|columns| columns.len() > 3 && columns[2].ends_with(&port))
        .filter(|columns| matches!(columns[3], "01" | "08"))
        .count()
}
