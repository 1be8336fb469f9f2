//! Keys: the callers of a server and their access. The rules are in `log/access.rs`.

use crate::engine::op::verbs;
pub use crate::{
    caller::Key,
    log::access::{digest, key_needed, unknown_key},
};

verbs![add::Add, list::List, revoke::Revoke];
