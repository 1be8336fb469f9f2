//! The only module that reads a clock. Everything else is handed the time.

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

/// A moment, in milliseconds since 1970. In JSON: RFC 3339, UTC, with milliseconds.
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

/// Where the time comes from. On PostgreSQL `System` means the database's clock.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    #[default]
    System,
    Manual(ManualClock),
}

impl Clock {
    /// What the wall says, or `None` where the database is to be asked.
    pub(crate) fn wall(&self, ask_database: bool) -> Option<Time> {
        match self {
            Clock::System if ask_database => None,
            #[expect(clippy::disallowed_methods, reason = "this is the clock module")]
            Clock::System => {
                let wall = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| Millis::from(d).0);
                Some(Time(wall).plus(set_ahead()))
            }
            Clock::Manual(clock) => Some(clock.read().wall),
        }
    }

    /// What this machine's clock says, for showing times to a person. A fleet's own time may be another.
    pub fn read(&self) -> Time {
        self.wall(false).unwrap_or(Time(0))
    }

    /// Milliseconds that only ever grow, at the pace of real time, in every process of this boot.
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

    /// Returns when the ticks have come to `at`: by tokio's timer, or when a test has moved its clock that far.
    pub(crate) async fn until(&self, at: i64) {
        match self {
            Clock::System => {
                // The timer stands still while a laptop's lid is closed and the ticks do not: so look at them often.
                const SLICE: i64 = 5000;
                while let left @ 1.. = at.saturating_sub(self.ticks()) {
                    tokio::time::sleep(Duration::from_millis(left.min(SLICE).unsigned_abs())).await;
                }
            }
            Clock::Manual(clock) => {
                let _ = clock.0.subscribe().wait_for(|hands| hands.ticks >= at).await;
            }
        }
    }

    /// Names the boot that `ticks` counts from; `None` where the system does not say.
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
fn set_ahead() -> Millis {
    let file = std::env::var_os("FENCE_CHAOS_CLOCK");
    let text = file.and_then(|file| std::fs::read_to_string(file).ok());
    Millis(text.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
}

#[cfg(not(all(feature = "chaos-clock", debug_assertions)))]
fn set_ahead() -> Millis {
    Millis(0)
}

/// A clock that a test moves. `advance` is time passing; `set_back` and `set_ahead` are somebody setting the wall clock. Whoever
/// waits for a time is woken when the hands have come to it.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<watch::Sender<Hands>>);

#[derive(Debug, Clone)]
struct Hands {
    wall: Time,
    ticks: i64,
    boot: String,
}

impl ManualClock {
    pub fn at(wall: Time) -> Self {
        Self(Arc::new(watch::Sender::new(Hands { wall, ticks: 0, boot: "boot-1".into() })))
    }
    pub fn advance(&self, by: Duration) {
        self.change(|hands| {
            hands.wall = hands.wall.plus(by.into());
            hands.ticks += Millis::from(by).0;
        });
    }
    pub fn set_back(&self, by: Duration) {
        self.change(|hands| hands.wall.0 -= Millis::from(by).0);
    }
    pub fn set_ahead(&self, by: Duration) {
        self.change(|hands| hands.wall.0 += Millis::from(by).0);
    }
    /// The machine starts anew: time since boot begins at nothing.
    pub fn reboot(&self) {
        self.change(|hands| {
            hands.ticks = 0;
            hands.boot.push('+');
        });
    }
    fn change(&self, f: impl FnOnce(&mut Hands)) {
        self.0.send_modify(f);
    }
    fn read(&self) -> Hands {
        self.0.borrow().clone()
    }
}

/// A limit on how long something may take, in real time: it guards against hanging, and decides no lease.
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

/// Makes a clock that can be set back into one that cannot: `now` is at least the ticks since boot plus the
/// furthest the wall was ever seen ahead of them. A dead holder's lease then ends when its ttl has really
/// passed. A wall that was set forward by mistake stays ahead until the next boot: early is safe, late is not.
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

/// A database's clock, as one node sees it beside its own ticks.
///
/// The two drift apart a little, so a clock that is behind by less than a second, or by a thousandth of the time
/// since it was last read, is believed. One that is further behind was set back: time then goes on from where
/// it was.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClockWatch {
    /// A time that was right, and the ticks by which it was. Kept for a second, so that what is asked meanwhile was
    /// asked after it, however many ask.
    seen: Option<(Time, i64)>,
}

/// What a database's clock said, at some moment between two ticks of this node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    pub wall: Time,
    /// How far the fleet was told to be ahead of it, by a node that saw it set back.
    pub told: Millis,
    /// The latest time that any node has stored.
    pub stored: Option<Time>,
    pub asked: i64,
    pub answered: i64,
}

const SECOND: i64 = 1000;

impl ClockWatch {
    /// What time it is, and how far the fleet is to be told that it is ahead, if it was told wrong.
    ///
    /// An answer that took long (it may have waited for a lock behind the clock) is late, which is not to say that the
    /// clock was set back: for that it has to be behind even if it was read as soon as it was asked for.
    ///
    /// Nobody is behind what the others have stored: the clock may have been ahead for a call that this node did not see.
    /// To a node that has seen nothing yet, a clock that is not behind that was set right, whatever the fleet was told
    /// before.
    pub fn now(&mut self, reading: Reading) -> (Time, Option<Millis>) {
        let Reading { wall, told, stored, asked, answered } = reading;
        let Some((then, at)) = self.seen else {
            let now = match stored {
                Some(stored) => {
                    let in_time = |at: &Time| at.plus(Millis(SECOND)) >= stored;
                    [wall, wall.plus(told)].into_iter().find(in_time).unwrap_or(stored)
                }
                None => wall.plus(told),
            };
            self.seen = Some((now, answered));
            let ahead = now.since(wall);
            return (now, (ahead != told).then_some(ahead));
        };
        let at_tick = |ticks: i64| {
            let passed = (ticks - at).max(0);
            let expected = Time(then.0 + passed);
            let drift = Millis(passed / 1000 + SECOND);
            // The nearest, and not the first that will do: somebody may have set it right again, or not.
            let nearest = [wall, wall.plus(told)].into_iter().min_by_key(|at| at.0.abs_diff(expected.0));
            nearest.filter(|at| at.plus(drift) >= expected).ok_or(expected)
        };
        let (now, ahead) = match (at_tick(answered), at_tick(asked)) {
            (Ok(now), _) => (now, now.since(wall)),
            (Err(expected), Err(least)) if asked >= at => (expected, least.since(wall)),
            (Err(expected), _) => (expected, told),
        };
        let set_back = stored.filter(|stored| now.plus(Millis(SECOND)) < *stored);
        let (now, ahead) = set_back.map_or((now, ahead), |stored| (stored, stored.since(wall)));
        if set_back.is_some() || answered - at >= SECOND {
            self.seen = Some((now, answered));
        }
        (now, ((ahead.0 - told.0).abs() >= SECOND).then_some(ahead))
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
    fn a_databases_clock_is_believed_until_it_is_set_back() {
        let hour = 3_600_000;
        let mut watch = ClockWatch::default();
        let at = |wall, told, ticks| Reading {
            wall: Time(wall),
            told,
            stored: None,
            asked: ticks,
            answered: ticks,
        };
        let right = Millis(0);
        assert_eq!(watch.now(at(10 * hour, right, 0)), (Time(10 * hour), None));
        // A little behind is drift, however long it goes on.
        assert_eq!(watch.now(at(11 * hour - 3000, right, hour)), (Time(11 * hour - 3000), None));
        // An hour behind is not: time goes on, and so it does for whoever is told.
        let (set_back, told) = watch.now(at(10 * hour, right, hour + 31_000));
        let told = told.unwrap();
        assert_eq!((set_back, told), (Time(11 * hour + 28_000), Millis(hour + 28_000)));
        assert_eq!(watch.now(at(10 * hour + 5, told, hour + 31_005)), (Time(11 * hour + 28_005), None));
        assert_eq!(ClockWatch::default().now(at(10 * hour, told, 5)), (set_back, None));
        // Set right again, it is believed again.
        assert_eq!(
            watch.now(at(11 * hour + 32_000, told, hour + 32_000)),
            (Time(11 * hour + 32_000), Some(right))
        );
    }

    #[test]
    fn an_answer_that_is_late_does_not_mean_that_the_clock_was_set_back() {
        let mut watch = ClockWatch::default();
        let right = Millis(0);
        let mut read = |wall, told, asked, answered| {
            watch.now(Reading { wall: Time(wall), told, stored: None, asked, answered })
        };
        assert_eq!(read(100_000, right, 0, 2), (Time(100_000), None));
        // Ten seconds late: it is as late as it is, and nobody is told anything.
        assert_eq!(read(103_000, right, 3000, 13_000), (Time(112_998), None));
        // Asked before another was answered, and answered after: nothing can be said.
        assert_eq!(read(105_000, right, 5000, 14_000), (Time(113_998), None));
        // Set back while many ask: those who asked since then tell, as far as it is certain.
        assert_eq!(read(54_000, right, 14_100, 14_110), (Time(114_108), Some(Millis(60_098))));
        let told = Millis(60_098);
        assert_eq!(read(54_020, told, 14_120, 14_130), (Time(114_118), None));
        // And an answer that is late does not change what was told.
        assert_eq!(read(55_000, told, 15_100, 25_100), (Time(125_098), None));
        // Not even if the clock was set right meanwhile.
        assert_eq!(read(125_100, told, 25_200, 35_200), (Time(135_198), None));
        assert_eq!(read(135_300, told, 35_300, 35_310), (Time(135_300), Some(right)));
    }

    #[test]
    fn who_has_not_looked_for_days_still_believes_what_it_is_told() {
        let day = 24 * 3_600_000;
        let mut watch = ClockWatch::default();
        let told = Millis(60_000);
        let at =
            |wall, ticks| Reading { wall: Time(wall), told, stored: None, asked: ticks, answered: ticks };
        assert_eq!(watch.now(at(day, 0)), (Time(day + 60_000), None));
        assert_eq!(watch.now(at(3 * day, 2 * day)), (Time(3 * day + 60_000), None));
    }

    #[test]
    fn who_has_seen_nothing_yet_goes_by_what_is_stored() {
        let hour = 3_600_000;
        let at = |wall, told, stored| {
            let reading = Reading {
                wall: Time(wall),
                told: Millis(told),
                stored: Some(Time(stored)),
                asked: 5,
                answered: 5,
            };
            ClockWatch::default().now(reading)
        };
        // In time, and behind by no more than drift.
        assert_eq!(at(10 * hour, 0, 10 * hour - 900), (Time(10 * hour), None));
        assert_eq!(at(10 * hour, 0, 10 * hour + 900), (Time(10 * hour), None));
        // Set back, and set back again after that was told.
        assert_eq!(at(9 * hour, 0, 10 * hour), (Time(10 * hour), Some(Millis(hour))));
        assert_eq!(at(9 * hour, hour, 10 * hour), (Time(10 * hour), None));
        assert_eq!(at(8 * hour, hour, 10 * hour), (Time(10 * hour), Some(Millis(2 * hour))));
        // Set right again, and nobody was there to take back what was told.
        assert_eq!(at(10 * hour, hour, 10 * hour - 900), (Time(10 * hour), Some(Millis(0))));
    }

    #[test]
    fn a_clock_that_another_node_saw_ahead_is_not_behind_for_this_one() {
        let day = 24 * 3_600_000;
        let mut watch = ClockWatch::default();
        let mut at = |wall, told, stored, ticks| {
            let stored = Some(Time(stored));
            watch.now(Reading { wall: Time(wall), told: Millis(told), stored, asked: ticks, answered: ticks })
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
