//! Maintenance of a fleet: integrity check, expiry, pruning, restore, export and import.

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
