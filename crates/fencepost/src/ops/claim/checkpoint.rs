//! Checkpoints of the work on a claimed item.

use crate::error::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A checkpoint of the work, for the next holder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Checkpoint {
    pub ordinal: i64,
    pub phase: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<serde_json::Value>,
}

/// The rule: the stored checkpoint, if it is kept instead of the new one.
pub(crate) fn already_reached(stored: Option<Checkpoint>, new: &Checkpoint) -> Result<Option<Checkpoint>> {
    match stored {
        Some(stored) if stored.ordinal > new.ordinal || stored == *new => Ok(Some(stored)),
        Some(stored) if stored.ordinal == new.ordinal => Err(Error::invalid(
            "ordinal",
            format!(
                "{} is the ordinal of another checkpoint, `{}`: ordinals only rise",
                new.ordinal, stored.phase
            ),
        )),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinals_never_go_back() {
        let at = |ordinal, phase: &str| Checkpoint { ordinal, phase: phase.into(), data: None };
        assert_eq!(already_reached(None, &at(1, "a")).unwrap(), None);
        assert_eq!(already_reached(Some(at(1, "a")), &at(2, "b")).unwrap(), None);
        assert_eq!(already_reached(Some(at(2, "b")), &at(1, "a")).unwrap(), Some(at(2, "b")));
        assert_eq!(already_reached(Some(at(2, "b")), &at(2, "b")).unwrap(), Some(at(2, "b")));
        assert!(already_reached(Some(at(2, "b")), &at(2, "c")).is_err());
    }
}
