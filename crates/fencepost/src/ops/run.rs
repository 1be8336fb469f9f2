//! Runs: sessions with a lease. The rules are in `lease`.

pub use crate::lease::{Lease, run::SHELL_TTL};
use crate::{
    clock::{Millis, Time},
    db::RunRow,
    engine::op::verbs,
    lease::run::LAPSED,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

verbs![
    list::List,
    renew::Renew,
    wait::Wait,
    suspect::Suspect,
    settle::Settle,
    charge::Charge,
    lift::Lift,
    end::End
];
/// A session of one executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    pub alive: bool,
    pub ttl_ms: Millis,
    pub opened_at: Time,
    /// The run expires at this time if it is not renewed.
    pub expires_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The lease expired, but expiry has not written that yet. The next claim or the server will.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lapsed: bool,
    /// Since when it waits for a person (`run/wait`). Only `run/list` shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_at: Option<Time>,
    /// The number of its claims.
    #[serde(default)]
    pub holds: i64,
    /// The tokens of its claims.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<String>,
    /// The trigger that a poll gave to this run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// The host that its poll named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The exit status of its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<String>,
    /// The cost that its settlement reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<serde_json::Value>,
    /// The output that its settlement reported, if the work was not completed. `run/list` shows it only for a named run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
}

impl Run {
    pub fn lease(&self) -> Lease {
        Lease { opened_at: self.opened_at, expires_at: self.expires_at }
    }
}

impl RunRow {
    /// The run as expiry would write it now.
    pub fn view(&self, now: Time) -> Run {
        let lapsed = self.ended_at.is_none() && !self.is_alive(now);
        let (ended_at, reason) = match lapsed {
            true => (Some(now), Some(LAPSED.to_owned())),
            false => (self.ended_at, self.reason.clone()),
        };
        Run {
            name: self.name.clone(),
            agent: self.agent.clone(),
            alive: self.is_alive(now),
            ttl_ms: self.ttl,
            opened_at: self.opened_at,
            expires_at: self.expires_at,
            ended_at,
            reason,
            lapsed,
            waiting_at: None,
            holds: 0,
            claims: Vec::new(),
            trigger: None,
            host: None,
            exit: None,
            cost: None,
            output: None,
        }
    }
}
