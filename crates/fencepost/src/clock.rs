//! The only module that reads a clock. All other modules get the time as an argument.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{
    borrow::Cow,
    fmt,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use tokio::sync::watch;

/// A point in time, in milliseconds since 1970. In JSON: RFC 3339, UTC, with milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub i64);

impl Time {
    pub fn plus(self, span: Millis) -> Time {
        Time(self.0.saturating_add(span.0))
    }
    pub fn since(self, earlier: Time) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(at) => write!(f, "{at:.3}"),
            Err(_) => write!(f, "{} ms", self.0),
        }
    }
}

impl FromStr for Time {
    type Err = jiff::Error;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Time(text.parse::<jiff::Timestamp>()?.as_millisecond()))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

/// A span of time; in JSON an integer, in a field whose name ends in `_ms`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema, Default,
)]
#[serde(transparent)]
pub struct Millis(pub i64);

impl Millis {
    pub const fn seconds(n: i64) -> Millis {
        Millis(n * 1000)
    }
    pub const fn minutes(n: i64) -> Millis {
        Millis(n * 60_000)
    }
    pub const fn days(n: i64) -> Millis {
        Millis(n * 86_400_000)
    }
}

impl From<Duration> for Millis {
    fn from(span: Duration) -> Self {
        Millis(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
    }
}

/// Zero, if the span is negative: a deadline in the past is due now.
impl From<Millis> for Duration {
    fn from(span: Millis) -> Self {
        Duration::from_millis(u64::try_from(span.0).unwrap_or(0))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms if ms % 86_400_000 == 0 && ms != 0 => write!(f, "{}d", ms / 86_400_000),
            ms if ms % 3_600_000 == 0 && ms != 0 => write!(f, "{}h", ms / 3_600_000),
            ms if ms % 60_000 == 0 && ms != 0 => write!(f, "{}m", ms / 60_000),
            ms if ms % 1000 == 0 => write!(f, "{}s", ms / 1000),
            ms => write!(f, "{ms}ms"),
        }
    }
}

/// The source of the time. On PostgreSQL `System` means the database's clock.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    #[default]
    System,
    Manual(ManualClock),
}

impl Clock {
    /// The wall clock's time, or `None` if the database's clock counts.
    pub(crate) fn wall(&self, ask_database: bool) -> Option<Time> {
        match self {
            Clock::System if ask_database => None,
            #[expect(clippy::disallowed_methods, reason = "this is the clock module")]
            Clock::System => {
                let wall = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| Millis::from(d).0);
                Some(Time(wall).plus(chaos_offset()))
            }
            Clock::Manual(clock) => Some(clock.read().wall),
        }
    }

    /// The time of this machine's clock, for showing times to a person. The fleet's time may differ.
    pub fn read(&self) -> Time {
        self.wall(false).unwrap_or(Time(0))
    }

    /// Milliseconds since boot. They grow at the pace of real time, never go back, and are the same in every process.
    pub fn ticks(&self) -> i64 {
        match self {
            Clock::System => {
                // The time since boot includes sleep: a lease runs on while a laptop's lid is closed.
                #[cfg(target_os = "linux")]
                let clock = rustix::time::ClockId::Boottime;
                #[cfg(not(target_os = "linux"))]
                let clock = rustix::time::ClockId::Monotonic;
                let at = rustix::time::clock_gettime(clock);
                at.tv_sec * 1000 + at.tv_nsec / 1_000_000
            }
            Clock::Manual(clock) => clock.read().ticks,
        }
    }

    /// Returns when the ticks have reached `at`: by tokio's timer, or when a test has moved its clock that far.
    pub async fn until(&self, at: i64) {
        match self {
            Clock::System => {
                // The timer stops while a laptop's lid is closed and the ticks do not, so read the ticks often.
                const SLICE: i64 = 5000;
                while let left @ 1.. = at.saturating_sub(self.ticks()) {
                    tokio::time::sleep(Duration::from_millis(left.min(SLICE).unsigned_abs())).await;
                }
            }
            Clock::Manual(clock) => {
                let _ = clock.0.subscribe().wait_for(|state| state.ticks >= at).await;
            }
        }
    }

    /// The name of the boot that `ticks` counts from; `None` if the system has no such name.
    pub(crate) fn boot(&self) -> Option<String> {
        match self {
            Clock::System => {
                std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned())
            }
            Clock::Manual(clock) => Some(clock.read().boot),
        }
    }
}

/// How far `make chaos` has set the clock ahead. See the feature in Cargo.toml.
#[cfg(all(feature = "chaos-clock", debug_assertions))]
fn chaos_offset() -> Millis {
    let file = std::env::var_os("FENCE_CHAOS_CLOCK");
    let text = file.and_then(|file| std::fs::read_to_string(file).ok());
    Millis(text.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
}

#[cfg(not(all(feature = "chaos-clock", debug_assertions)))]
fn chaos_offset() -> Millis {
    Millis(0)
}

/// A clock that a test moves. `advance` lets time pass; `set_back` and `set_ahead` set the wall clock. A call that
/// waits for a time is woken when the clock reaches it.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<watch::Sender<ManualState>>);

#[derive(Debug, Clone)]
struct ManualState {
    wall: Time,
    ticks: i64,
    boot: String,
}

impl ManualClock {
    pub fn at(wall: Time) -> Self {
        Self(Arc::new(watch::Sender::new(ManualState { wall, ticks: 0, boot: "boot-1".into() })))
    }
    pub fn advance(&self, by: Duration) {
        self.change(|state| {
            state.wall = state.wall.plus(by.into());
            state.ticks += Millis::from(by).0;
        });
    }
    pub fn set_back(&self, by: Duration) {
        self.change(|state| state.wall.0 -= Millis::from(by).0);
    }
    pub fn set_ahead(&self, by: Duration) {
        self.change(|state| state.wall.0 += Millis::from(by).0);
    }
    /// The machine reboots: the time since boot starts at zero.
    pub fn reboot(&self) {
        self.change(|state| {
            state.ticks = 0;
            state.boot.push('+');
        });
    }
    fn change(&self, f: impl FnOnce(&mut ManualState)) {
        self.0.send_modify(f);
    }
    fn read(&self) -> ManualState {
        self.0.borrow().clone()
    }
}

/// A limit in real time on how long something may take. It guards against hanging and decides no lease.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Instant);

#[expect(clippy::disallowed_methods, reason = "this is the clock module")]
impl Deadline {
    pub fn after(span: Duration) -> Self {
        Deadline(Instant::now() + span)
    }
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }
}

/// A clock that cannot be set back, made from a wall clock that can: `now` is the ticks since boot plus the largest
/// distance at which the wall clock was ever ahead of them. A dead holder's lease then ends when its ttl has really
/// passed. A wall clock that was set forward by mistake stays ahead until the next boot: ending a lease early is safe,
/// ending it late is not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Ratchet {
    pub ahead: Option<i64>,
}

impl Ratchet {
    pub fn now(&mut self, wall: Time, ticks: i64) -> Time {
        let ahead = (wall.0 - ticks).max(self.ahead.unwrap_or(i64::MIN));
        self.ahead = Some(ahead);
        Time(ticks + ahead)
    }
}

/// The database's clock, compared with this node's ticks so that setting it back does not stop the fleet's time.
///
/// The two drift apart a little. A clock that is behind by less than a second, or by less than a thousandth of the time
/// since the last reading, is trusted. A clock that is further behind was set back: the fleet's time then goes on from
/// where it was, ahead of the clock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DatabaseClock {
    /// A correct time, and this node's ticks at that time. It is replaced at most once a second, so that readings which
    /// many calls request at the same time come after it.
    reference: Option<(Time, i64)>,
}

/// One reading of the database's clock, and the rows about the fleet's time that came with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockReading {
    pub wall: Time,
    /// How far the fleet's time is ahead of the clock, as a node stored that saw the clock set back.
    pub stored_ahead: Millis,
    /// The latest time that any node has stored.
    pub stored_time: Option<Time>,
    /// This node's ticks when it asked, and when it had the answer.
    pub asked: i64,
    pub answered: i64,
}

const SECOND: i64 = 1000;

impl DatabaseClock {
    /// The fleet's time, and how far it is ahead of the clock if the stored value is wrong: the caller stores the new
    /// one.
    ///
    /// A late answer does not show that the clock was set back: the statement may have waited for a lock after it read
    /// the clock. A clock was set back only if it would be behind even if it was read as soon as it was asked for.
    ///
    /// No node's time is behind the stored time: the clock may have been ahead during a call that this node did not
    /// see. A node without a reference trusts a clock that is not behind the stored time: somebody has set it right,
    /// and `stored_ahead` is out of date.
    pub fn now(&mut self, reading: ClockReading) -> (Time, Option<Millis>) {
        let ClockReading { wall, stored_ahead, stored_time, asked, answered } = reading;
        let Some((then, at)) = self.reference else {
            let now = match stored_time {
                Some(stored) => {
                    let in_time = |at: &Time| at.plus(Millis(SECOND)) >= stored;
                    [wall, wall.plus(stored_ahead)].into_iter().find(in_time).unwrap_or(stored)
                }
                None => wall.plus(stored_ahead),
            };
            self.reference = Some((now, answered));
            let ahead = now.since(wall);
            return (now, (ahead != stored_ahead).then_some(ahead));
        };
        let at_tick = |ticks: i64| {
            let passed = (ticks - at).max(0);
            let expected = Time(then.0 + passed);
            let drift = Millis(passed / 1000 + SECOND);
            // The nearer of the two: somebody may have set the clock right again since `stored_ahead` was stored.
            let nearest =
                [wall, wall.plus(stored_ahead)].into_iter().min_by_key(|at| at.0.abs_diff(expected.0));
            nearest.filter(|at| at.plus(drift) >= expected).ok_or(expected)
        };
        let (now, ahead) = match (at_tick(answered), at_tick(asked)) {
            (Ok(now), _) => (now, now.since(wall)),
            (Err(expected), Err(least)) if asked >= at => (expected, least.since(wall)),
            (Err(expected), _) => (expected, stored_ahead),
        };
        let set_back = stored_time.filter(|stored| now.plus(Millis(SECOND)) < *stored);
        let (now, ahead) = set_back.map_or((now, ahead), |stored| (stored, stored.since(wall)));
        if set_back.is_some() || answered - at >= SECOND {
            self.reference = Some((now, answered));
        }
        (now, ((ahead.0 - stored_ahead.0).abs() >= SECOND).then_some(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_clock_set_back_does_not_stop_time() {
        let mut ratchet = Ratchet::default();
        assert_eq!(ratchet.now(Time(1_000_000), 0), Time(1_000_000));
        assert_eq!(ratchet.now(Time(1_000_000 - 3_600_000), 0), Time(1_000_000));
        assert_eq!(ratchet.now(Time(1_000_000 - 3_600_000 + 31_000), 31_000), Time(1_031_000));
    }

    #[test]
    fn a_wall_clock_set_forward_is_followed() {
        let mut ratchet = Ratchet::default();
        ratchet.now(Time(1_000_000), 0);
        assert_eq!(ratchet.now(Time(9_000_000), 1000), Time(9_000_000));
    }

    #[test]
    fn a_databases_clock_is_trusted_until_it_is_set_back() {
        let hour = 3_600_000;
        let mut clock = DatabaseClock::default();
        let at = |wall, stored_ahead, ticks| ClockReading {
            wall: Time(wall),
            stored_ahead,
            stored_time: None,
            asked: ticks,
            answered: ticks,
        };
        let right = Millis(0);
        assert_eq!(clock.now(at(10 * hour, right, 0)), (Time(10 * hour), None));
        // A little behind is drift, however long it goes on.
        assert_eq!(clock.now(at(11 * hour - 3000, right, hour)), (Time(11 * hour - 3000), None));
        // An hour behind is not: time goes on here, and in nodes that read how far it is ahead.
        let (set_back, ahead) = clock.now(at(10 * hour, right, hour + 31_000));
        let ahead = ahead.unwrap();
        assert_eq!((set_back, ahead), (Time(11 * hour + 28_000), Millis(hour + 28_000)));
        assert_eq!(clock.now(at(10 * hour + 5, ahead, hour + 31_005)), (Time(11 * hour + 28_005), None));
        assert_eq!(DatabaseClock::default().now(at(10 * hour, ahead, 5)), (set_back, None));
        // Once the clock is set right again, it is trusted again.
        assert_eq!(
            clock.now(at(11 * hour + 32_000, ahead, hour + 32_000)),
            (Time(11 * hour + 32_000), Some(right))
        );
    }

    #[test]
    fn a_late_answer_does_not_mean_that_the_clock_was_set_back() {
        let mut clock = DatabaseClock::default();
        let right = Millis(0);
        let mut read = |wall, stored_ahead, asked, answered| {
            clock.now(ClockReading { wall: Time(wall), stored_ahead, stored_time: None, asked, answered })
        };
        assert_eq!(read(100_000, right, 0, 2), (Time(100_000), None));
        // Ten seconds late: nothing is stored.
        assert_eq!(read(103_000, right, 3000, 13_000), (Time(112_998), None));
        // Asked before another was answered, and answered after: this shows nothing.
        assert_eq!(read(105_000, right, 5000, 14_000), (Time(113_998), None));
        // Set back while many ask: the first that asked after it stores how far, as far as that is certain.
        assert_eq!(read(54_000, right, 14_100, 14_110), (Time(114_108), Some(Millis(60_098))));
        let ahead = Millis(60_098);
        assert_eq!(read(54_020, ahead, 14_120, 14_130), (Time(114_118), None));
        // A late answer does not change the stored value.
        assert_eq!(read(55_000, ahead, 15_100, 25_100), (Time(125_098), None));
        // Not even if the clock was set right meanwhile.
        assert_eq!(read(125_100, ahead, 25_200, 35_200), (Time(135_198), None));
        assert_eq!(read(135_300, ahead, 35_300, 35_310), (Time(135_300), Some(right)));
    }

    #[test]
    fn a_node_that_read_no_clock_for_days_still_trusts_the_stored_value() {
        let day = 24 * 3_600_000;
        let mut clock = DatabaseClock::default();
        let stored_ahead = Millis(60_000);
        let at = |wall, ticks| ClockReading {
            wall: Time(wall),
            stored_ahead,
            stored_time: None,
            asked: ticks,
            answered: ticks,
        };
        assert_eq!(clock.now(at(day, 0)), (Time(day + 60_000), None));
        assert_eq!(clock.now(at(3 * day, 2 * day)), (Time(3 * day + 60_000), None));
    }

    #[test]
    fn a_node_without_a_reference_goes_by_the_stored_time() {
        let hour = 3_600_000;
        let at = |wall, ahead, stored| {
            let reading = ClockReading {
                wall: Time(wall),
                stored_ahead: Millis(ahead),
                stored_time: Some(Time(stored)),
                asked: 5,
                answered: 5,
            };
            DatabaseClock::default().now(reading)
        };
        // In time, and behind by no more than drift.
        assert_eq!(at(10 * hour, 0, 10 * hour - 900), (Time(10 * hour), None));
        assert_eq!(at(10 * hour, 0, 10 * hour + 900), (Time(10 * hour), None));
        // Set back, and set back again after that was stored.
        assert_eq!(at(9 * hour, 0, 10 * hour), (Time(10 * hour), Some(Millis(hour))));
        assert_eq!(at(9 * hour, hour, 10 * hour), (Time(10 * hour), None));
        assert_eq!(at(8 * hour, hour, 10 * hour), (Time(10 * hour), Some(Millis(2 * hour))));
        // Set right again while no node was there to store that.
        assert_eq!(at(10 * hour, hour, 10 * hour - 900), (Time(10 * hour), Some(Millis(0))));
    }

    #[test]
    fn a_clock_that_another_node_saw_ahead_is_not_behind_for_this_one() {
        let day = 24 * 3_600_000;
        let mut clock = DatabaseClock::default();
        let mut at = |wall, ahead, stored, ticks| {
            let reading = ClockReading {
                wall: Time(wall),
                stored_ahead: Millis(ahead),
                stored_time: Some(Time(stored)),
                asked: ticks,
                answered: ticks,
            };
            clock.now(reading)
        };
        assert_eq!(at(day, 0, day, 0), (Time(day), None));
        let ahead = 40 * day - 500;
        assert_eq!(at(day + 500, 0, 41 * day, 500), (Time(41 * day), Some(Millis(ahead))));
        assert_eq!(at(day + 600, ahead, 41 * day, 600), (Time(41 * day + 100), None));
    }

    #[test]
    fn time_reads_as_it_prints() {
        let at: Time = "2026-11-15T09:30:00.250Z".parse().unwrap();
        assert_eq!(at.to_string(), "2026-11-15T09:30:00.250Z");
        assert_eq!(serde_json::to_string(&at).unwrap(), "\"2026-11-15T09:30:00.250Z\"");
        assert_eq!(Time(0).to_string(), "1970-01-01T00:00:00.000Z");
        assert_eq!(Millis::minutes(90).to_string(), "90m");
    }
}
