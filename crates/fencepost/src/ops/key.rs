//! Keys: who may call a server, and how much. The rules are in `log/access.rs`.

use crate::engine::op::verbs;
pub use crate::{
    caller::Key,
    log::access::{key_needed, unknown_key},
};

verbs![add::Add, list::List, revoke::Revoke];
