//! Spend limits: how many runs, tokens and dollars an agent, a board or the fleet may use within a window. They are computed from
//! the rows of `triggered`, one per trigger of a poll, so a restart forgets nothing. A limit holds work back and loses none.
//!
//! A limit is checked when work is claimed or delivered, and a cost is known only when its run is settled. So work in flight may
//! exceed a limit by its own cost, and calls that are checked at the same moment may exceed a limit of runs by one each.

pub(crate) mod boards;
pub(crate) mod cost;
mod dollars;
pub(crate) mod rule;
pub(crate) mod usage;

use crate::engine::op::verbs;
pub use dollars::Dollars;
pub use rule::What;

verbs![set::Set, show::Show];
