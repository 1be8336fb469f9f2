//! What looks after a fleet: the integrity check, pruning, and what a restore needs.

use crate::op::verbs;

verbs![check::Check, prune::Prune, restored::Restored];
