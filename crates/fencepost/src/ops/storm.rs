//! Storms: agents in shared channels wake each other. A scheduler wakes members for unread posts, and limits bound what one event
//! may set off.
//!
//! A wake-up is a message in the mailbox `wakeups/AGENT`, and a row of `wakeup`. `storm/tick` schedules wake-ups: `marks.rs` marks
//! unread posts, `tick.rs` reads the pairs (an agent in a channel) that are due, `facts.rs` their facts, and `rule.rs` decides. `agent/poll` hands a wake-up out
//! (`wakeups.rs`), together with the claim on the agent's cursor in the channel, so that a post triggers either a mention or a
//! wake-up. Budgets, breaker and causes are computed from stored rows: a restart forgets nothing.

pub(crate) mod alarm;
mod chain;
pub(crate) mod facts;
mod marks;
pub(crate) mod mentions;
pub(crate) mod prune;
pub(crate) mod rule;
pub mod settings;
pub(crate) mod state;
pub(crate) mod wakeups;

use crate::engine::op::verbs;
pub use rule::Why as WhyNot;
pub use settings::Setting;
pub use wakeups::{DELIVERED, Reclaimed, Wakeup};

verbs![
    tick::Tick,
    due::Due,
    show::Show,
    why::Why,
    cause::Cause,
    set::Set,
    breaker::Breaker,
    environment::Environment,
];
