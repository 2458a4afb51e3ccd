//! The load on a machine during a run that the bench did not cause: the processors used by other
//! programs, the time that tasks waited for a processor, and the temperature.

use std::path::PathBuf;

use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::device::Device;
use super::files::{Files, entries, number, text};
use super::machine::processor_mhz;

/// Names of processor temperature sensors.
///
/// Source: Linux, drivers/hwmon and drivers/thermal.
const PROCESSOR_SENSORS: [&str; 6] =
    ["coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "x86_pkg_temp"];

/// Fields of the first line of `/proc/stat` after the name, in ticks: user, nice, system, idle,
/// iowait, irq, softirq, steal. Time of guests is part of user and nice.
///
/// Source: Linux, Documentation/filesystems/proc.rst.
const STAT_FIELDS: usize = 8;
const STAT_IDLE: [usize; 2] = [3, 4];
const STAT_STEAL: usize = 7;

/// Load on the machine during a run that the bench did not cause.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MachineLoad {
    /// Number of processors in the machine.
    pub processors: f64,
    /// Average number of processors that were busy with work other than the bench: other programs,
    /// the kernel's threads, and the target's server.
    pub others_processors: f64,
    /// Average number of processors that the hypervisor withheld.
    pub stolen_processors: f64,
    /// Share of the time during which a task waited for a processor, 0 to 1; absent if the kernel
    /// does not report it (PSI).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_pressure: Option<f64>,
    /// Mean frequency of the processors at the end of the run; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_mhz: Option<f64>,
    /// Highest temperature of the processor at the end of the run; absent without a sensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_celsius: Option<f64>,
    /// Number of times the processor was throttled because of its temperature; absent if not
    /// counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor_throttles: Option<u64>,
    /// Highest temperature of the target's hardware at the end of the run; absent without a
    /// sensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_celsius: Option<f64>,
    /// Warning temperature of the target's hardware; absent if the hardware reports none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_celsius_limit: Option<f64>,
}

/// Counters of the machine, and the paths of its sensors.
#[derive(Clone, Debug)]
pub struct Gauges {
    files: Files,
    /// Files that contain thousandths of a degree.
    processor: Vec<PathBuf>,
    device: Vec<PathBuf>,
    throttles: Vec<PathBuf>,
}

/// The machine's counters at one point in time.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    seconds: f64,
    own_seconds: f64,
    ticks: [u64; STAT_FIELDS],
    processors: f64,
    pressure_us: Option<f64>,
    throttles: Option<u64>,
}

impl Gauges {
    /// Returns the gauges of this machine and of a target's hardware.
    pub fn new(device: Option<&Device>) -> Self {
        Self::found(Files::host(), device)
    }

    pub(super) fn found(files: Files, device: Option<&Device>) -> Self {
        let (mut processor, mut of_device) = (Vec::new(), Vec::new());
        for folder in files.entries("/sys/class/hwmon") {
            let name = text(&folder.join("name")).unwrap_or_default();
            let inputs = entries(&folder).into_iter().filter(|path| is_input(path));
            if PROCESSOR_SENSORS.contains(&name.as_str()) {
                processor.extend(inputs);
            } else if let Ok(owner) = std::fs::canonicalize(folder.join("device")) {
                let bottoms = device.map(Device::bottoms).unwrap_or_default();
                if bottoms.iter().any(|layer| layer.folder().starts_with(&owner)) {
                    of_device.extend(inputs);
                }
            }
        }
        if processor.is_empty() {
            for zone in files.entries("/sys/class/thermal") {
                let kind = text(&zone.join("type")).unwrap_or_default();
                if PROCESSOR_SENSORS.contains(&kind.as_str()) {
                    processor.push(zone.join("temp"));
                }
            }
        }
        let throttles = |cpu: PathBuf| cpu.join("thermal_throttle/core_throttle_count");
        let processors = files.entries("/sys/devices/system/cpu").into_iter().map(throttles);
        let throttles = processors.filter(|path| path.exists()).collect();
        Self { files, processor, device: of_device, throttles }
    }

    /// Returns the current counters; `None` if the kernel does not report them.
    pub fn now(&self) -> Option<Moment> {
        let stat = self.files.text("/proc/stat")?;
        let (ticks, processors) = ticks(&stat)?;
        let pressure = self.files.text("/proc/pressure/cpu");
        let counts: Option<Vec<f64>> = self.throttles.iter().map(|path| number(path)).collect();
        let counts = counts.filter(|counts| !counts.is_empty());
        Some(Moment {
            seconds: seconds(ClockId::Monotonic),
            own_seconds: seconds(ClockId::ProcessCPUTime),
            ticks,
            processors,
            pressure_us: pressure.and_then(|text| pressure_us(&text)),
            throttles: counts.map(|counts| counts.iter().sum::<f64>() as u64),
        })
    }

    /// Returns the load of the machine since `earlier`.
    pub fn since(&self, earlier: Option<Moment>) -> Option<MachineLoad> {
        let (earlier, now) = earlier.zip(self.now())?;
        let mut load = load(&earlier, &now)?;
        load.processor_mhz = processor_mhz(&self.files).map(round);
        load.processor_celsius =
            self.processor.iter().filter_map(|path| celsius(path)).reduce(f64::max);
        let device = self.device.iter().filter_map(|path| Some((celsius(path)?, path)));
        if let Some((celsius, path)) = device.max_by(|one, other| one.0.total_cmp(&other.0)) {
            load.device_celsius = Some(celsius);
            load.device_celsius_limit = self::celsius(&limit_of(path));
        }
        Some(load)
    }
}

/// Returns whether a sensor file contains a temperature.
fn is_input(path: &std::path::Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with("temp") && name.ends_with("_input")
}

/// Returns the file with a sensor's limit: `temp1_max` for `temp1_input`.
fn limit_of(path: &std::path::Path) -> PathBuf {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    path.with_file_name(name.replace("_input", "_max"))
}

/// Returns the temperature from a file in thousandths of a degree, if it is plausible for a
/// machine.
fn celsius(path: &std::path::Path) -> Option<f64> {
    // A disconnected sensor reports values far outside this range.
    number(path).map(|thousandths| thousandths / 1e3).filter(|it| (-50.0..=150.0).contains(it))
}

/// Returns the ticks of all processors, and the number of processors.
fn ticks(stat: &str) -> Option<([u64; STAT_FIELDS], f64)> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let mut ticks = [0; STAT_FIELDS];
    for (tick, field) in ticks.iter_mut().zip(fields) {
        *tick = field.parse().ok()?;
    }
    let is_one = |line: &&str| {
        let number = line.strip_prefix("cpu").unwrap_or_default();
        number.starts_with(|c: char| c.is_ascii_digit())
    };
    Some((ticks, stat.lines().filter(is_one).count() as f64))
}

/// Returns the microseconds during which any task waited for a processor.
///
/// Source: Linux, Documentation/accounting/psi.rst.
fn pressure_us(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// Returns the load between two moments; `None` if no time has passed.
fn load(earlier: &Moment, now: &Moment) -> Option<MachineLoad> {
    let mut ticks = now.ticks;
    for (tick, earlier) in ticks.iter_mut().zip(earlier.ticks) {
        *tick = tick.saturating_sub(earlier);
    }
    let total = ticks.iter().map(|tick| *tick as f64).sum::<f64>();
    let wall = now.seconds - earlier.seconds;
    if total <= 0.0 || wall <= 0.0 {
        return None;
    }
    let idle: u64 = STAT_IDLE.iter().map(|index| ticks[*index]).sum();
    let stolen = ticks[STAT_STEAL] as f64;
    let share = |ticks: f64| ticks / total * now.processors;
    let own = (now.own_seconds - earlier.own_seconds) / wall;
    let others = (share(total - idle as f64 - stolen) - own).clamp(0.0, now.processors);
    let pressure = now.pressure_us.zip(earlier.pressure_us);
    let pressure = pressure.map(|(now, then)| ((now - then) / 1e6 / wall).clamp(0.0, 1.0));
    let throttles = now.throttles.zip(earlier.throttles);
    Some(MachineLoad {
        processors: now.processors,
        others_processors: round(others),
        stolen_processors: round(share(stolen)),
        processor_pressure: pressure.map(round),
        processor_mhz: None,
        processor_celsius: None,
        processor_throttles: throttles.map(|(now, then)| now.saturating_sub(then)),
        device_celsius: None,
        device_celsius_limit: None,
    })
}

/// Rounds to thousandths, because ticks have no finer resolution.
fn round(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    //! Goal: the share of other programs is the remainder of the machine's ticks.
    use super::*;

    fn moment(seconds: f64, own_seconds: f64, stat: &str, pressure: &str) -> Moment {
        let (ticks, processors) = ticks(stat).expect("counters");
        let pressure_us = pressure_us(pressure);
        Moment { seconds, own_seconds, ticks, processors, pressure_us, throttles: Some(3) }
    }

    #[test]
    fn the_load_of_others_excludes_the_bench() {
        let earlier = moment(
            10.0,
            1.0,
            "cpu  100 0 100 700 50 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 5",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull total=0",
        );
        // Two seconds on two processors: 400 ticks, including 200 idle and 40 stolen ones.
        let mut now = moment(
            12.0,
            1.6,
            "cpu  200 0 140 850 100 10 10 40 0 0\ncpu0 1\ncpu1 1\nintr 5",
            "some avg10=9.00 avg60=0.00 avg300=0.00 total=1500000\nfull total=0",
        );
        now.throttles = Some(5);
        let load = load(&earlier, &now).expect("time has passed");
        // 160 of 400 ticks correspond to 0.8 of two processors; the bench used 0.3.
        assert_eq!((load.processors, load.others_processors), (2.0, 0.5));
        assert_eq!((load.stolen_processors, load.processor_pressure), (0.2, Some(0.25)));
        assert_eq!(load.processor_throttles, Some(2));
        assert!(super::load(&now, &now).is_none());
        assert!(ticks("cpu  x y").is_none() && ticks("").is_none());
    }

    #[test]
    fn this_machine_is_measured() {
        let gauges = Gauges::new(None);
        let before = gauges.now();
        // The tick counter advances a hundred times per second.
        let begun = seconds(ClockId::Monotonic);
        while seconds(ClockId::Monotonic) - begun < 0.1 {}
        let load = gauges.since(before).expect("Linux has /proc/stat");
        assert!(load.processors >= 1.0 && load.others_processors <= load.processors, "{load:?}");
    }
}
