//! Sending what a turn queued, and what happens when the kernel refuses.
//!
//! Invariant: every queued datagram is either accepted by the kernel once or reported by `send_failed` once. A message
//! that fails is handled alone: it is repeated, split or dropped. The rest of its batch follows it, so the
//! order within a flow holds through every fall-back.
//!
//! An endpoint is looked up once, for its way out; what follows is about that socket and its batches, whose trains name their endpoints
//! themselves.

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use std::os::fd::AsFd as _;
use turnbuckle_sys::sockopt;

use super::backend::Backend;
use super::calls::{self, send_to};
use super::pack::{Buffers, Origin, Outbox, Packer};
use super::undelivered;
use crate::counters::SendCounters;
use crate::handler::{DatagramHandler, TurnHandler};
use crate::names::EndpointId;
use crate::queue::{SendQueue, Touched, Train};
use crate::reports::{SendFailure, Warning};
use crate::sockets::table::{Table, WayOut};

/// Trains refused by `EINVAL`, before any was sent, after which a socket sends no more trains.
const GSO_REFUSALS_MAX: u8 = 3;
/// Messages after which a batch is sent: enough to fill several calls, small enough to stay in the cache.
const BATCH_MESSAGES: usize = 256;
/// Pieces after which a batch is sent.
const BATCH_PIECES: usize = 8192;
/// Headers in front of a UDP payload.
const HEADERS_LEN_V4: u32 = 28;
const HEADERS_LEN_V6: u32 = 48;

/// Sends queues; keeps the arrays for it.
pub(crate) struct Flusher {
    backend: Backend,
    outbox: Outbox,
    /// For splitting a train while the batch it was in is still on its way.
    spare: Outbox,
    /// `sendmmsg` was found missing.
    no_sendmmsg: bool,
}

/// What stays the same during one flush.
struct Job<'a> {
    queue: &'a SendQueue,
    buffers: Buffers<'a>,
    counters: &'a SendCounters,
}

impl Flusher {
    pub(crate) fn new(backend: Backend) -> Self {
        Self {
            backend,
            outbox: Outbox::with_capacity(2 * BATCH_MESSAGES),
            spare: Outbox::with_capacity(BATCH_MESSAGES),
            no_sendmmsg: false,
        }
    }

    /// Sends everything in `queue`. The caller clears it afterwards.
    ///
    /// Where endpoints are to be closed, those of relays send first and the closing ones are closed before clients are sent anything: when an answer
    /// leaves that says that an allocation has ended, its port is free.
    pub(crate) fn flush<H: TurnHandler + DatagramHandler>(
        &mut self,
        queue: &SendQueue,
        buffers: Buffers<'_>,
        table: &mut Table,
        counters: &SendCounters,
        handler: &mut H,
    ) {
        let has_closing = !table.closing.is_empty();
        if queue.is_empty() && !has_closing {
            return;
        }
        counters.flushes.add(1);
        let job = Job {
            queue,
            buffers,
            counters,
        };
        if !has_closing {
            return self.flush_of(&job, |_| true, table, handler);
        }
        let clients = table.clients.clone();
        let is_client = |endpoint| clients.contains(&endpoint);
        self.flush_of(&job, |endpoint| !is_client(endpoint), table, handler);
        // guard: V-44-closed-first
        while let Some(endpoint) = table.closing.pop() {
            if let Some(mut bound) = table.remove(endpoint) {
                undelivered::report(&mut bound, handler);
            }
        }
        self.flush_of(&job, is_client, table, handler);
    }

    /// Sends what those endpoints have in the queue.
    fn flush_of<H: TurnHandler + DatagramHandler>(
        &mut self,
        job: &Job<'_>,
        is_wanted: impl Fn(EndpointId) -> bool,
        table: &mut Table,
        handler: &mut H,
    ) {
        let touched = job.queue.touched().iter();
        for touched in touched.filter(|it| is_wanted(it.endpoint)) {
            let Some(way) = &mut table.way_out(touched.endpoint) else {
                for (_, train) in job.queue.trains(touched) {
                    give_up(
                        job,
                        touched.endpoint,
                        train.datagrams,
                        SendFailure::Closed,
                        handler,
                    );
                }
                continue;
            };
            match self.backend {
                Backend::Single => self.singly(job, touched, way, handler),
                Backend::Mmsg | Backend::Gso => self.in_batches(job, touched, way, handler),
            }
        }
    }

    /// Sends an endpoint's trains on its way out, with as few calls as possible.
    fn in_batches<H: TurnHandler + DatagramHandler>(
        &mut self,
        job: &Job<'_>,
        touched: &Touched,
        way: &mut WayOut<'_>,
        handler: &mut H,
    ) {
        let v6 = way.local.is_ipv6();
        if let Some((train, run)) = job.queue.only_datagram(touched)
            && way.socket.set_fragments(false, v6).is_ok()
            && let Some(datagram) = self.outbox.contiguous(job.queue, job.buffers, run)
        {
            // `sendto` spares the kernel the message header and the vector.
            deliver(job, train, way, handler, |way| {
                send_to(way.socket.fd(), datagram, &train.address)
            });
            return;
        }
        let mut trains = job.queue.trains(touched).peekable();
        while let Some(&(_, first)) = trains.peek() {
            let dont_fragment = first.dont_fragment;
            if way.socket.set_fragments(dont_fragment, v6).is_err() {
                // Such an option is refused for no reason that the kernel knows, unless a sandbox does it.
                let cause = SendFailure::Other;
                give_up(job, touched.endpoint, first.datagrams, cause, handler);
                trains.next();
                continue;
            }
            let mut packer = self.outbox.pack(job.queue, job.buffers);
            while packer.batch.len() < BATCH_MESSAGES && packer.batch.pieces() < BATCH_PIECES {
                let alike = |(_, train): &(u32, &Train)| train.dont_fragment == dont_fragment;
                let Some((number, train)) = trains.next_if(alike) else {
                    break;
                };
                if way.socket.trains.allowed && train.datagrams > 1 {
                    packer.train(number, train);
                } else {
                    packer.singles(number, train);
                }
            }
            if !packer.batch.is_empty() {
                submit(
                    job,
                    &mut packer,
                    way,
                    &mut self.spare,
                    &mut self.no_sendmmsg,
                    handler,
                );
            }
        }
    }

    /// Sends an endpoint's datagrams on its way out, with one call each.
    fn singly<H: DatagramHandler>(
        &mut self,
        job: &Job<'_>,
        touched: &Touched,
        way: &mut WayOut<'_>,
        handler: &mut H,
    ) {
        let v6 = way.local.is_ipv6();
        for (number, train) in job.queue.trains(touched) {
            if way.socket.set_fragments(train.dont_fragment, v6).is_err() {
                let cause = SendFailure::Other;
                give_up(job, touched.endpoint, train.datagrams, cause, handler);
                continue;
            }
            for run in job.queue.runs(train) {
                if run.is_bare() {
                    let bytes = job.queue.source(job.buffers, run.source);
                    for index in 0..run.count {
                        let (start, len) = run.payload(index);
                        let datagram = &bytes[start..start + len];
                        deliver(job, train, way, handler, |way| {
                            send_to(way.socket.fd(), datagram, &train.address)
                        });
                    }
                } else {
                    let mut packer = self.outbox.pack(job.queue, job.buffers);
                    packer.run_singly(number, train, run);
                    let mut batch = packer.batch;
                    batch.seal();
                    for index in 0..batch.len() {
                        deliver(job, train, way, handler, |way| {
                            calls::send_one(&batch, way.socket.fd(), index)
                        });
                    }
                }
            }
        }
    }
}

/// Sends a batch to the end.
fn submit<H: TurnHandler + DatagramHandler>(
    job: &Job<'_>,
    packer: &mut Packer<'_>,
    way: &mut WayOut<'_>,
    spare: &mut Outbox,
    no_sendmmsg: &mut bool,
    handler: &mut H,
) {
    packer.batch.seal();
    let mut next = 0;
    while next < packer.batch.len() {
        let batch = &mut packer.batch;
        let sent = match *no_sendmmsg {
            false => calls::send(batch, way.socket.fd(), next),
            true => calls::send_one(batch, way.socket.fd(), next).map(|()| 1),
        };
        match sent {
            Ok(sent) => {
                note_sent(job, way, &packer.origins()[next..next + sent]);
                next += sent;
            }
            Err(Errno::NOSYS) if !*no_sendmmsg => {
                *no_sendmmsg = true;
                handler.warning(Warning::SendmmsgUnavailable {
                    errno: Errno::NOSYS.raw_os_error(),
                });
            }
            Err(errno) => {
                next += recover(job, packer, next, errno, way, spare, handler);
            }
        }
    }
}

/// Handles the failure of message `next`. Returns how many messages that settles.
#[cold]
fn recover<H: TurnHandler + DatagramHandler>(
    job: &Job<'_>,
    packer: &Packer<'_>,
    next: usize,
    errno: Errno,
    way: &mut WayOut<'_>,
    spare: &mut Outbox,
    handler: &mut H,
) -> usize {
    let origins = &packer.origins()[next..];
    let origin = origins[0];
    match settle(job, errno, way, |way| {
        calls::send_one(&packer.batch, way.socket.fd(), next)
    }) {
        Ok(()) => {
            note_sent(job, way, &origins[..1]);
            1
        }
        Err(Errno::AGAIN) => {
            // The socket takes nothing more; asking again for each message would only cost time.
            let endpoint = |origin: &Origin| job.queue.train(origin.train).endpoint;
            for of_one in origins.chunk_by(|one, next| endpoint(one) == endpoint(next)) {
                let datagrams = of_one.iter().map(|origin| origin.count).sum();
                let endpoint = endpoint(&of_one[0]);
                give_up(job, endpoint, datagrams, SendFailure::BufferFull, handler);
            }
            origins.len()
        }
        Err(errno) if origin.count > 1 && splitting_helps(errno) => {
            split(job, origin.train, errno, way, spare, handler);
            1
        }
        Err(errno) => {
            let endpoint = job.queue.train(origin.train).endpoint;
            give_up(job, endpoint, origin.count, cause(errno), handler);
            1
        }
    }
}

/// Sends the datagrams of a failed train one by one, and switches GSO off if trains fail for want of it.
fn split<H: TurnHandler + DatagramHandler>(
    job: &Job<'_>,
    number: u32,
    errno: Errno,
    way: &mut WayOut<'_>,
    spare: &mut Outbox,
    handler: &mut H,
) {
    job.counters.fallbacks.add(1);
    let train = job.queue.train(number);
    if way.socket.trains.allowed && is_feature_missing(errno, way, train) {
        way.socket.trains.refusals += 1;
        // `EINVAL` has many causes, and one train may have met another than this.
        if errno != Errno::INVAL || way.socket.trains.refusals >= GSO_REFUSALS_MAX {
            way.socket.trains.allowed = false;
            job.counters.gso_disabled.add(1);
            handler.warning(Warning::GsoDisabled {
                local: way.local,
                errno: errno.raw_os_error(),
            });
        }
    }
    let mut packer = spare.pack(job.queue, job.buffers);
    packer.singles(number, train);
    packer.batch.seal();
    let mut next = 0;
    let mut alone = false;
    while next < packer.batch.len() {
        let batch = &mut packer.batch;
        let sent = if alone {
            calls::send_one(batch, way.socket.fd(), next).map(|()| 1)
        } else {
            calls::send(batch, way.socket.fd(), next)
        };
        match sent {
            Ok(sent) => {
                note_sent(job, way, &packer.origins()[next..next + sent]);
                next += sent;
            }
            Err(errno) => {
                // From here on with plain sends, the last resort.
                alone = true;
                match settle(job, errno, way, |way| {
                    calls::send_one(batch, way.socket.fd(), next)
                }) {
                    Ok(()) => note_sent(job, way, &packer.origins()[next..=next]),
                    Err(errno) => give_up(job, train.endpoint, 1, cause(errno), handler),
                }
                next += 1;
            }
        }
    }
}

/// Sends one datagram with `send`, to the end.
#[inline]
fn deliver<H: DatagramHandler>(
    job: &Job<'_>,
    train: &Train,
    way: &mut WayOut<'_>,
    handler: &mut H,
    mut send: impl FnMut(&WayOut<'_>) -> Result<(), Errno>,
) {
    let result = match send(way) {
        Ok(()) => Ok(()),
        Err(errno) => settle(job, errno, way, send),
    };
    match result {
        Ok(()) => {
            job.counters.note_call(1);
            job.counters.datagrams.add(1);
        }
        Err(errno) => give_up(job, train.endpoint, 1, cause(errno), handler),
    }
}

/// Repeats a failed send once where that can help. The error may be that of an earlier datagram: the socket keeps an ICMP error
/// for the next call, whichever that is. Or the send buffer is full and can grow.
#[cold]
fn settle(
    job: &Job<'_>,
    errno: Errno,
    way: &mut WayOut<'_>,
    mut send: impl FnMut(&WayOut<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    match errno {
        Errno::NOBUFS | Errno::PERM => return Err(errno),
        Errno::AGAIN => {
            if !way.socket.grow_send_buffer() {
                return Err(errno);
            }
            job.counters.buffers_grown.add(1);
        }
        _ => {}
    }
    job.counters.retries.add(1);
    send(way)
}

/// Returns whether the datagrams of a train that failed with `errno` may pass one by one.
fn splitting_helps(errno: Errno) -> bool {
    !matches!(errno, Errno::NOBUFS | Errno::PERM)
}

/// Returns whether a train failed because this socket cannot send trains at all, and not because of where it was going.
///
/// A pending ICMP error can be any of these numbers (`icmp_err_convert`), but `settle` has consumed it by now. The kernel
/// before 6.14 also answers `EINVAL` when one datagram of the train does not fit the path, which a remote host can bring
/// about for IPv6; that must not slow down everyone else on this socket.
fn is_feature_missing(errno: Errno, way: &WayOut<'_>, train: &Train) -> bool {
    match errno {
        Errno::IO => true,
        Errno::NOPROTOOPT | Errno::OPNOTSUPP => !way.socket.trains.proven,
        Errno::INVAL => !way.socket.trains.proven && !exceeds_path(train),
        _ => false,
    }
}

/// Returns whether a datagram of this train is larger than the path takes unfragmented.
fn exceeds_path(train: &Train) -> bool {
    let v6 = train.to.is_ipv6();
    let path_mtu = || -> std::io::Result<u32> {
        let socket = Socket::new(
            Domain::for_address(train.to),
            Type::DGRAM,
            Some(Protocol::UDP),
        )?;
        socket.connect(&train.to.into())?;
        Ok(sockopt::path_mtu(socket.as_fd(), v6)?)
    };
    let headers_len = if v6 { HEADERS_LEN_V6 } else { HEADERS_LEN_V4 };
    path_mtu().is_ok_and(|mtu| train.wire_len + headers_len > mtu)
}

/// Counts the messages of one call.
#[inline]
fn note_sent(job: &Job<'_>, way: &mut WayOut<'_>, origins: &[Origin]) {
    job.counters.note_call(origins.len());
    let (mut datagrams, mut gso_sends, mut gso_datagrams) = (0, 0, 0);
    for origin in origins {
        datagrams += u64::from(origin.count);
        if origin.count > 1 {
            gso_sends += 1;
            gso_datagrams += u64::from(origin.count);
        }
    }
    job.counters.datagrams.add(datagrams);
    if gso_sends > 0 {
        way.socket.trains.proven = true;
        job.counters.gso_sends.add(gso_sends);
        job.counters.gso_datagrams.add(gso_datagrams);
    }
}

#[cold]
fn give_up<H: DatagramHandler>(
    job: &Job<'_>,
    endpoint: EndpointId,
    datagrams: u32,
    cause: SendFailure,
    handler: &mut H,
) {
    job.counters.failed.of(cause).add(u64::from(datagrams));
    handler.send_failed(endpoint, datagrams, cause);
}

fn cause(errno: Errno) -> SendFailure {
    match errno {
        Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM => SendFailure::BufferFull,
        Errno::MSGSIZE => SendFailure::MessageTooLong,
        Errno::PERM | Errno::ACCESS => SendFailure::NotPermitted,
        Errno::CONNREFUSED
        | Errno::HOSTUNREACH
        | Errno::NETUNREACH
        | Errno::HOSTDOWN
        | Errno::NETDOWN => SendFailure::Unreachable,
        _ => SendFailure::Other,
    }
}

#[cfg(test)]
mod tests;
