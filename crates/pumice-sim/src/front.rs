//! The front end of a simulated drive in virtual time: the command queue, the link, and the
//! processor that handles every command.
//!
//! ```text
//! write  queue slot -> link: command and data -> processor -> the drive has the data
//! read   queue slot -> link: command -> processor -> the drive has read a part of the data ->
//!        decompression, link
//! ```
//!
//! Commands beyond the queue depth get slots in order of arrival. The link and the processor each
//! serve one item at a time, in order of arrival. The link is idle while the next data to send is
//! being decompressed. The front end handles neither addresses nor bytes.

use std::cell::Cell;

use super::ftl::ReadTimes;
use crate::{Error, Result};
use pumice_drive::base::Clock;
use pumice_drive::base::units::transfer_ns;
use pumice_drive::base::wait::{Line, WaitQueue};

/// Number of bytes of a command that are read before the link sends them: a page of several planes
/// (a guess).
const PART_BYTES: u64 = 16 << 10;

/// Parameters of a drive's front end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrontSpec {
    /// Bytes per second from the drive to the host, without protocol overhead.
    pub read_bytes_per_s: u64,
    /// Bytes per second from the host to the drive, without protocol overhead.
    pub write_bytes_per_s: u64,
    /// Link time of a command in addition to its data, in ns.
    pub command_ns: u64,
    /// Maximum number of commands in flight; at least 1.
    pub depth: u32,
    /// Processing time of a read command, in ns.
    pub read_ns: u64,
    /// Processing time of a write command, in ns. Its inverse is the maximum command rate.
    pub write_ns: u64,
    /// Minimum time between two write commands that do not continue earlier ones, in ns; a firmware
    /// limit. 0 for no limit.
    pub scattered_write_ns: u64,
    /// Number of host bytes compressed per second, if this is a limit.
    pub engine_bytes_per_s: Option<u64>,
    /// Number of stored bytes decompressed per second, if this is a limit.
    pub load_bytes_per_s: Option<u64>,
}

impl FrontSpec {
    /// Checks the parameters.
    ///
    /// # Errors
    /// `InvalidInput` for a link or an engine with a speed of 0, a queue of depth 0, or times above
    /// ten seconds.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &'static str| Err(Error::InvalidInput(what.into()));
        if self.read_bytes_per_s == 0 || self.write_bytes_per_s == 0 {
            return wrong("the link speed must not be zero");
        }
        if self.engine_bytes_per_s == Some(0) || self.load_bytes_per_s == Some(0) {
            return wrong("the speed of the compression engine must not be zero");
        }
        if self.depth == 0 {
            return wrong("the queue depth must be at least 1");
        }
        if [self.command_ns, self.read_ns, self.write_ns, self.scattered_write_ns]
            .iter()
            .any(|&ns| ns > 10_000_000_000)
        {
            return wrong("the time of a command must be at most ten seconds");
        }
        Ok(())
    }
}

impl FrontSpec {
    /// Returns the processing time of a write command, in ns.
    pub(super) fn write_ns_of(&self, is_scattered: bool) -> u64 {
        if is_scattered { self.write_ns.max(self.scattered_write_ns) } else { self.write_ns }
    }

    /// Returns the time that read data occupies the link, in ns.
    pub(super) fn send_ns(&self, bytes: u64, stored_bytes: u64) -> u64 {
        let load_ns = self.load_bytes_per_s.map_or(0, |rate| transfer_ns(stored_bytes, rate));
        load_ns + transfer_ns(bytes, self.read_bytes_per_s)
    }

    /// Returns the earliest time at which the link can start to send data that arrives during
    /// `times` without waiting for data, except for the last part.
    pub(super) fn send_at_ns(&self, times: ReadTimes, bytes: u64, stored_bytes: u64) -> u64 {
        let early = bytes.saturating_sub(PART_BYTES) as f64 / bytes.max(1) as f64;
        let early_ns = (self.send_ns(bytes, stored_bytes) as f64 * early) as u64;
        times.first_ns.max(times.last_ns.saturating_sub(early_ns))
    }
}

/// A resource that serves one item at a time, first come, first served.
#[derive(Debug, Default)]
struct Server {
    free_ns: Cell<u64>,
}

impl Server {
    /// Waits for the resource, and then for the service time `len_ns`.
    async fn serve(&self, clock: &impl Clock, len_ns: u64) {
        let now_ns = clock.now_ns();
        let ended_ns = self.free_ns.get().max(now_ns) + len_ns;
        self.free_ns.set(ended_ns);
        if ended_ns > now_ns {
            clock.sleep_ns(ended_ns - now_ns).await;
        }
    }
}

/// The front end of one drive.
#[derive(Debug)]
pub struct Front<C> {
    spec: FrontSpec,
    clock: C,
    wire: Server,
    processor: Server,
    engine: Server,
    in_flight: Cell<u32>,
    /// Commands waiting for a slot, in order of arrival.
    arrivals: Line,
    left: WaitQueue,
}

/// A slot in the command queue, held until dropped.
pub struct QueueSlot<'a, C>(&'a Front<C>);

impl<C> Drop for QueueSlot<'_, C> {
    fn drop(&mut self) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.left.wake_all();
    }
}

impl<C: Clock> Front<C> {
    /// Creates an idle front end.
    ///
    /// # Errors
    /// The errors of [`FrontSpec::check`].
    pub fn new(spec: FrontSpec, clock: C) -> Result<Self> {
        spec.check()?;
        let (wire, processor, engine) = (Server::default(), Server::default(), Server::default());
        let (in_flight, arrivals, left) = (Cell::new(0), Line::default(), WaitQueue::default());
        Ok(Self { spec, clock, wire, processor, engine, in_flight, arrivals, left })
    }

    /// Accepts a command with `bytes` bytes of data, then runs `drive`. A scattered write does not
    /// continue an earlier one.
    pub async fn write<T>(
        &self,
        bytes: u64,
        is_scattered: bool,
        drive: impl Future<Output = T>,
    ) -> T {
        let _slot = self.enter().await;
        let data_ns = transfer_ns(bytes, self.spec.write_bytes_per_s);
        self.wire.serve(&self.clock, self.spec.command_ns + data_ns).await;
        self.processor.serve(&self.clock, self.spec.write_ns_of(is_scattered)).await;
        if let Some(bytes_per_s) = self.spec.engine_bytes_per_s {
            self.engine.serve(&self.clock, transfer_ns(bytes, bytes_per_s)).await;
        }
        drive.await
    }

    /// Accepts a read command. Its data must be sent with [`Front::send`], in parts or as a whole,
    /// before the slot is dropped.
    pub async fn begin_read(&self) -> QueueSlot<'_, C> {
        let slot = self.enter().await;
        self.wire.serve(&self.clock, self.spec.command_ns).await;
        self.processor.serve(&self.clock, self.spec.read_ns).await;
        slot
    }

    /// Sends read data to the host: `bytes` bytes, which are stored as `stored_bytes` bytes on
    /// flash.
    pub async fn send(&self, bytes: u64, stored_bytes: u64) {
        self.wire.serve(&self.clock, self.spec.send_ns(bytes, stored_bytes)).await;
    }

    async fn enter(&self) -> QueueSlot<'_, C> {
        let _turn = self.arrivals.turn().await;
        let free = || (self.in_flight.get() < self.spec.depth).then_some(());
        self.left.wait_for(free).await;
        self.in_flight.set(self.in_flight.get() + 1);
        QueueSlot(self)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the duration of a command is the sum of its parts, and a single resource serves one
    //! command at a time. Method: commands in virtual time compared with sums calculated by hand.

    use std::rc::Rc;

    use super::*;
    use pumice_drive::runtime::Runtime;

    const SPEC: FrontSpec = FrontSpec {
        read_bytes_per_s: 200_000_000,
        write_bytes_per_s: 100_000_000,
        command_ns: 5_000,
        depth: 4,
        read_ns: 20_000,
        write_ns: 30_000,
        scattered_write_ns: 0,
        engine_bytes_per_s: None,
        load_bytes_per_s: None,
    };
    /// Duration of a command on the drive.
    const DRIVE_NS: u64 = 100_000;

    /// Returns the time at which `count` simultaneous commands of 4000 bytes have ended.
    fn time(spec: FrontSpec, count: u32, is_write: bool) -> u64 {
        let runtime = Runtime::simulated();
        let front = Rc::new(Front::new(spec, runtime.clone()).unwrap());
        let left = Rc::new(Cell::new(count));
        for _ in 0..count {
            let (front, left, clock) = (Rc::clone(&front), Rc::clone(&left), runtime.clone());
            runtime.spawn(async move {
                let drive = async { clock.sleep_ns(DRIVE_NS).await };
                if is_write {
                    front.write(4000, true, drive).await
                } else {
                    let _slot = front.begin_read().await;
                    drive.await;
                    front.send(4000, 1000).await;
                }
                left.set(left.get() - 1);
            });
        }
        runtime.block_on(async {
            while left.get() > 0 {
                runtime.sleep_ns(1_000).await;
            }
        });
        runtime.now_ns()
    }

    #[test]
    fn one_command_takes_the_sum_of_its_parts() {
        assert_eq!(time(SPEC, 1, true), 5_000 + 40_000 + 30_000 + DRIVE_NS);
        assert_eq!(time(SPEC, 1, false), 5_000 + 20_000 + DRIVE_NS + 20_000);
        let load = FrontSpec { load_bytes_per_s: Some(50_000_000), ..SPEC };
        assert_eq!(time(load, 1, false), 5_000 + 20_000 + DRIVE_NS + 20_000 + 20_000);
        let engine = FrontSpec { engine_bytes_per_s: Some(50_000_000), ..SPEC };
        assert_eq!(time(engine, 1, true), 5_000 + 40_000 + 30_000 + 80_000 + DRIVE_NS);
    }

    #[test]
    fn a_single_resource_limits_many_parts() {
        // The wire is the bottleneck for writes, the processor for reads.
        let writes = time(SPEC, 40, true);
        assert_eq!(writes, 40 * 45_000 + 30_000 + DRIVE_NS);
        let reads = time(FrontSpec { read_ns: 50_000, ..SPEC }, 40, false);
        assert!((40 * 50_000..40 * 50_000 + 200_000).contains(&reads), "{reads}");
        // The wire waits for decompressed data.
        let load = FrontSpec { depth: 32, load_bytes_per_s: Some(20_000_000), ..SPEC };
        let loaded = time(load, 40, false);
        assert!((40 * 75_000..40 * 75_000 + 200_000).contains(&loaded), "{loaded}");
        // Commands run one after another.
        let alone = time(FrontSpec { depth: 1, ..SPEC }, 10, false);
        assert_eq!(alone, 10 * (5_000 + 20_000 + DRIVE_NS + 20_000));
    }

    /// Guards against commands that starve while later ones overtake them.
    #[test]
    fn slots_are_given_in_order_of_arrival() {
        let runtime = Runtime::simulated();
        let spec = FrontSpec { depth: 1, ..SPEC };
        let front = Rc::new(Front::new(spec, runtime.clone()).unwrap());
        let ended = Rc::new(std::cell::RefCell::new(Vec::new()));
        for task in 0..5 {
            let (front, ended) = (Rc::clone(&front), Rc::clone(&ended));
            runtime.spawn(async move {
                for _ in 0..4 {
                    front.write(4000, true, async {}).await;
                    ended.borrow_mut().push(task);
                }
            });
        }
        runtime.block_on(async {
            while ended.borrow().len() < 20 {
                runtime.sleep_ns(1_000).await;
            }
        });
        let rounds: Vec<_> = ended.borrow().chunks(5).map(<[i32]>::to_vec).collect();
        assert_eq!(rounds, [[0, 1, 2, 3, 4]; 4]);
    }

    #[test]
    fn impossible_fronts_are_refused() {
        let wrong: [fn(&mut FrontSpec); 6] = [
            |spec| spec.depth = 0,
            |spec| spec.read_bytes_per_s = 0,
            |spec| spec.write_bytes_per_s = 0,
            |spec| spec.engine_bytes_per_s = Some(0),
            |spec| spec.write_ns = u64::MAX,
            |spec| spec.load_bytes_per_s = Some(0),
        ];
        for (number, wrong) in wrong.into_iter().enumerate() {
            let mut spec = SPEC;
            wrong(&mut spec);
            assert!(spec.check().is_err(), "{number}");
        }
    }
}
