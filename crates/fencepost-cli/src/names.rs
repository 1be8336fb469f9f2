//! Names that this program makes up.

use sha2::{Digest, Sha256};

/// A name that nobody else has: `lock-5f…`.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}{:032x}", fastrand::u128(..))
}

/// A short name for a text, always the same for the same text: `5f0c9a3e`.
pub fn digest(text: &str) -> String {
    Sha256::digest(text).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}
