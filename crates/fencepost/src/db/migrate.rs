//! The schema as numbered migrations, forward only. Add a file and a line; never change a migration that shipped.
//! The last one is only in tests, so it gets the next number when you add one.

use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct Migration {
    pub version: i64,
    pub sql: &'static str,
}

pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, sql: include_str!("migrations/0001_runs.sql") },
    Migration { version: 2, sql: include_str!("migrations/0002_tasks.sql") },
    Migration { version: 3, sql: include_str!("migrations/0003_cancelled.sql") },
    Migration { version: 4, sql: include_str!("migrations/0004_deliveries_and_keys.sql") },
    Migration { version: 5, sql: include_str!("migrations/0005_mail.sql") },
    Migration { version: 6, sql: include_str!("migrations/0006_agents.sql") },
    Migration { version: 7, sql: include_str!("migrations/0007_routes.sql") },
    Migration { version: 8, sql: include_str!("migrations/0008_order.sql") },
    Migration { version: 9, sql: include_str!("migrations/0009_version.sql") },
    Migration { version: 10, sql: include_str!("migrations/0010_batches.sql") },
    Migration { version: 11, sql: include_str!("migrations/0011_place.sql") },
    Migration { version: 12, sql: include_str!("migrations/0012_asked.sql") },
    Migration { version: 13, sql: include_str!("migrations/0013_in_use.sql") },
    Migration { version: 14, sql: include_str!("migrations/0014_keyed.sql") },
    Migration { version: 15, sql: include_str!("migrations/0015_gone.sql") },
    Migration { version: 16, sql: include_str!("migrations/0016_pauses.sql") },
    Migration { version: 17, sql: include_str!("migrations/0017_fleet_id.sql") },
    Migration { version: 18, sql: include_str!("migrations/0018_loops.sql") },
    Migration { version: 19, sql: include_str!("migrations/0019_once.sql") },
    Migration { version: 20, sql: include_str!("migrations/0020_storms.sql") },
    Migration { version: 21, sql: include_str!("migrations/0021_waiting.sql") },
    #[cfg(test)]
    Migration { version: 22, sql: include_str!("../ops/conformance/parcel.sql") },
];

/// The first version whose row of `fleet` has a column for the version.
const STORED_SINCE: i64 = 9;

impl Migration {
    /// The statement that stores the new version, for the end of the migration's transaction.
    pub fn store_version(&self) -> String {
        if self.version < STORED_SINCE {
            return String::new();
        }
        format!("update fleet set schema_version = {};", self.version)
    }
}

pub(crate) fn latest() -> i64 {
    MIGRATIONS.len() as i64
}

/// Refuses a schema newer than this program: it may have given rows a meaning that this program would break.
pub(crate) fn refuse_newer(version: i64) -> Result<()> {
    if version <= latest() {
        return Ok(());
    }
    Err(Error::unavailable(format!(
        "the fleet has schema version {version}, and this fence knows versions up to {}",
        latest()
    ))
    .hint("use the newer fence that made it, or restore the backup it left beside the database"))
}

/// Refuses a schema that another process migrated while this one had the fleet open.
pub(crate) fn refuse_changed(version: i64) -> Result<()> {
    if version == latest() {
        return Ok(());
    }
    Err(Error::fleet_changed(format!(
        "the fleet was migrated to schema version {version} while this fence, which knows version {}, had it open",
        latest()
    ))
    .hint("stop this process and start the newer fence: processes that use one fleet are upgraded together"))
}

/// Refuses an older schema, for a caller that does not migrate.
pub(crate) fn refuse_older(version: i64) -> Result<()> {
    if version >= latest() {
        return Ok(());
    }
    Err(Error::unavailable(format!(
        "the fleet has schema version {version}, and this fence knows version {}",
        latest()
    ))
    .with("schema_version", version)
    .hint("fence init brings it up to date, as any other command does"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_up_from_one() {
        let versions: Vec<_> = MIGRATIONS.iter().map(|m| m.version).collect();
        assert_eq!(versions, (1..=latest()).collect::<Vec<_>>());
    }
}
