//! The settings of the scheduler. They are stored in the fleet, so that all processes use the same values. A setting that was
//! never set has its default.

use crate::{
    clock::{Millis, Time},
    db::{Row, Stmt, Tx},
    error::{Error, Result},
    limits::TTL_MAX,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// A setting of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// Whether unread posts wake agents: 1 or 0.
    Enabled,
    /// Wake-ups of one agent in one channel within the window.
    MaxTriggersPerWindow,
    /// The window of the budgets, in milliseconds.
    WindowMs,
    /// The shortest time between two wake-ups of one agent in one channel, in milliseconds.
    MinIntervalMs,
    /// The breaker opens at this many pending and running wake-ups.
    BreakerBacklogThreshold,
    /// How long the breaker stays open, in milliseconds.
    BreakerCooldownMs,
    /// Mentions and wake-ups in a row from one root, at most.
    MaxDepth,
    /// Mentions and wake-ups that one root triggers within the window, at most.
    MaxFanout,
    /// Processes that run for wake-ups at the same time, in the fleet.
    MaxActiveGlobal,
    /// The same for each agent.
    MaxActivePerAgent,
    /// The lease of a wake-up until its process has started, in milliseconds.
    StartLeaseMs,
}

/// The range of values of a setting, and whether a channel may have its own.
struct Definition {
    default: i64,
    range: (i64, i64),
    of_channel: bool,
    variable: &'static str,
}

impl Setting {
    pub const ALL: [Setting; 11] = [
        Setting::Enabled,
        Setting::MaxTriggersPerWindow,
        Setting::WindowMs,
        Setting::MinIntervalMs,
        Setting::BreakerBacklogThreshold,
        Setting::BreakerCooldownMs,
        Setting::MaxDepth,
        Setting::MaxFanout,
        Setting::MaxActiveGlobal,
        Setting::MaxActivePerAgent,
        Setting::StartLeaseMs,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Setting::Enabled => "enabled",
            Setting::MaxTriggersPerWindow => "max_triggers_per_window",
            Setting::WindowMs => "window_ms",
            Setting::MinIntervalMs => "min_interval_ms",
            Setting::BreakerBacklogThreshold => "breaker_backlog_threshold",
            Setting::BreakerCooldownMs => "breaker_cooldown_ms",
            Setting::MaxDepth => "max_depth",
            Setting::MaxFanout => "max_fanout",
            Setting::MaxActiveGlobal => "max_active_global",
            Setting::MaxActivePerAgent => "max_active_per_agent",
            Setting::StartLeaseMs => "start_lease_ms",
        }
    }

    pub(super) fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.as_str() == text)
    }

    fn definition(self) -> Definition {
        let define = |default, low, high, of_channel, variable| Definition {
            default,
            range: (low, high),
            of_channel,
            variable,
        };
        let longest = TTL_MAX.0;
        match self {
            Setting::Enabled => define(1, 0, 1, true, "AUTO_UNREAD_ENABLED"),
            Setting::MaxTriggersPerWindow => {
                define(3, 0, 100_000, true, "AUTO_UNREAD_MAX_TRIGGERS_PER_WINDOW")
            }
            Setting::WindowMs => define(300_000, 1, longest, true, "AUTO_UNREAD_WINDOW_MS"),
            Setting::MinIntervalMs => define(30_000, 0, longest, true, "AUTO_UNREAD_MIN_INTERVAL_MS"),
            Setting::BreakerBacklogThreshold => {
                define(50, 1, 1_000_000, false, "AUTO_UNREAD_BREAKER_BACKLOG_THRESHOLD")
            }
            Setting::BreakerCooldownMs => {
                define(60_000, 0, longest, false, "AUTO_UNREAD_BREAKER_COOLDOWN_MS")
            }
            Setting::MaxDepth => define(20, 1, 1_000_000, false, "AUTO_UNREAD_MAX_DEPTH"),
            Setting::MaxFanout => define(100, 1, 1_000_000, false, "AUTO_UNREAD_MAX_FANOUT"),
            Setting::MaxActiveGlobal => define(8, 1, 100_000, false, "WORKER_FALLBACK_MAX_ACTIVE_GLOBAL"),
            Setting::MaxActivePerAgent => {
                define(2, 1, 100_000, false, "WORKER_FALLBACK_MAX_ACTIVE_PER_AGENT")
            }
            Setting::StartLeaseMs => define(45_000, 1000, longest, false, "TRIGGERING_LEASE_TIMEOUT_MS"),
        }
    }

    pub fn default_value(self) -> i64 {
        self.definition().default
    }
    /// The environment variable that sets it when a server starts.
    pub fn variable(self) -> &'static str {
        self.definition().variable
    }
    /// Whether a channel may have its own value.
    pub fn is_of_channel(self) -> bool {
        self.definition().of_channel
    }
    /// Whether it is a time in milliseconds.
    pub fn is_time(self) -> bool {
        self.as_str().ends_with("_ms")
    }

    /// Refuses a value outside of its range.
    pub fn check(self, value: i64) -> Result<()> {
        let (low, high) = self.definition().range;
        crate::limits::check::range(self.as_str(), value, low, high)
    }
}

/// A stored value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub value: i64,
    pub source: String,
    pub at: Time,
}

/// All settings of the fleet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings(HashMap<(String, Setting), Stored>);

impl Settings {
    pub fn stmt() -> Stmt {
        Stmt::read("select scope, name, value, source, at from setting", params![])
    }

    pub async fn load(tx: &mut Tx<'_>) -> Result<Self> {
        Self::read(&tx.one(Self::stmt()).await?.rows)
    }

    pub fn read(rows: &[Row]) -> Result<Self> {
        let mut all = HashMap::new();
        for row in rows {
            // A name of a later version is left alone.
            let Some(setting) = Setting::read(&row.get::<String>("name")?) else { continue };
            let stored = Stored { value: row.get("value")?, source: row.get("source")?, at: row.get("at")? };
            all.insert((row.get("scope")?, setting), stored);
        }
        Ok(Self(all))
    }

    /// The value of the fleet.
    pub fn get(&self, setting: Setting) -> i64 {
        self.stored("", setting).map_or_else(|| setting.default_value(), |stored| stored.value)
    }

    pub fn stored(&self, scope: &str, setting: Setting) -> Option<&Stored> {
        self.0.get(&(scope.to_owned(), setting))
    }

    /// The values that channels have of their own, by channel and setting.
    pub fn of_channels(&self) -> Vec<(&str, Setting, &Stored)> {
        let own = self.0.iter().filter(|((scope, _), _)| !scope.is_empty());
        let mut own: Vec<_> =
            own.map(|((scope, setting), stored)| (scope.as_str(), *setting, stored)).collect();
        own.sort_unstable_by_key(|(scope, setting, _)| (*scope, *setting));
        own
    }

    /// The limits of a channel: its own, or else those of the fleet.
    pub fn limits(&self, channel: &str) -> Limits {
        let of = |setting| self.stored(channel, setting).map_or_else(|| self.get(setting), |own| own.value);
        Limits {
            enabled: of(Setting::Enabled) == 1,
            max_triggers: usize::try_from(of(Setting::MaxTriggersPerWindow)).unwrap_or_default(),
            window: Millis(of(Setting::WindowMs)),
            min_interval: Millis(of(Setting::MinIntervalMs)),
            max_depth: self.get(Setting::MaxDepth),
            max_fanout: self.get(Setting::MaxFanout),
            fanout_window: self.window(),
        }
    }

    /// The window in which the triggers of a root are counted.
    pub fn window(&self) -> Millis {
        Millis(self.get(Setting::WindowMs))
    }
}

/// The limits on the wake-ups of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub enabled: bool,
    pub max_triggers: usize,
    pub window: Millis,
    pub min_interval: Millis,
    pub max_depth: i64,
    pub max_fanout: i64,
    /// The window in which the triggers of a root are counted: the fleet's.
    pub fanout_window: Millis,
}

impl Limits {
    /// Wake-ups before this time no longer count.
    pub fn counted_since(&self, now: Time) -> Time {
        Time(now.0 - self.window.0.max(self.min_interval.0))
    }
}

impl Setting {
    /// Reads a value as a person or an environment writes it: a number, `on` or `off`.
    pub fn parse(self, text: &str) -> Result<i64> {
        let text = text.trim();
        let value = match (self, text.to_ascii_lowercase().as_str()) {
            (Setting::Enabled, "true" | "on" | "yes") => Some(1),
            (Setting::Enabled, "false" | "off" | "no") => Some(0),
            _ => text.parse().ok(),
        };
        let value = value.ok_or_else(|| {
            Error::invalid(self.as_str(), format!("is `{}`, not a number", crate::ids::clip(text)))
        })?;
        self.check(value)?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_promised() {
        let names = Setting::ALL.map(|setting| (setting.variable(), setting.default_value()));
        assert_eq!(
            names,
            [
                ("AUTO_UNREAD_ENABLED", 1),
                ("AUTO_UNREAD_MAX_TRIGGERS_PER_WINDOW", 3),
                ("AUTO_UNREAD_WINDOW_MS", 300_000),
                ("AUTO_UNREAD_MIN_INTERVAL_MS", 30_000),
                ("AUTO_UNREAD_BREAKER_BACKLOG_THRESHOLD", 50),
                ("AUTO_UNREAD_BREAKER_COOLDOWN_MS", 60_000),
                ("AUTO_UNREAD_MAX_DEPTH", 20),
                ("AUTO_UNREAD_MAX_FANOUT", 100),
                ("WORKER_FALLBACK_MAX_ACTIVE_GLOBAL", 8),
                ("WORKER_FALLBACK_MAX_ACTIVE_PER_AGENT", 2),
                ("TRIGGERING_LEASE_TIMEOUT_MS", 45_000),
            ]
        );
        for setting in Setting::ALL {
            assert_eq!(Setting::read(setting.as_str()), Some(setting));
            assert_eq!(serde_json::json!(setting), setting.as_str());
            setting.check(setting.default_value()).unwrap();
        }
    }

    #[test]
    fn a_channel_may_have_its_own_limits() {
        let stored = |value| Stored { value, source: "x".into(), at: Time(0) };
        let settings = Settings(HashMap::from([
            ((String::new(), Setting::WindowMs), stored(1000)),
            (("general".into(), Setting::WindowMs), stored(5)),
            (("general".into(), Setting::Enabled), stored(0)),
        ]));
        assert_eq!(settings.limits("general").window, Millis(5));
        assert_eq!(settings.limits("other").window, Millis(1000));
        assert_eq!((settings.limits("general").enabled, settings.limits("other").enabled), (false, true));
    }

    #[test]
    fn values_as_people_write_them() {
        for (text, value) in [("on", 1), ("OFF", 0), ("true", 1), ("0", 0), (" 1 ", 1)] {
            assert_eq!(Setting::Enabled.parse(text).unwrap(), value, "{text}");
        }
        for text in ["", "2", "maybe", "-1"] {
            assert!(Setting::Enabled.parse(text).is_err(), "{text}");
        }
        assert!(Setting::WindowMs.parse("on").is_err());
    }
}
