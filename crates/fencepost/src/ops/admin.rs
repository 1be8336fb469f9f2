//! What looks after a fleet: the integrity check, pruning, and what a restore needs.

use crate::engine::op::verbs;

verbs![
    about::About,
    check::Check,
    due::Due,
    expire::Expire,
    prune::Prune,
    restored::Restored,
    set_clock::SetClock,
    export::Export,
    import::Import
];
