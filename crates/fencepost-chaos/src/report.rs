//! The report of a run, as a table and as JSON.

use crate::Database;
use serde::Serialize;
use std::{collections::BTreeMap, fmt};

/// The result of one run on one database.
#[derive(Debug, Serialize)]
pub struct Report {
    pub database: Database,
    pub seed: u64,
    pub seconds: u64,
    /// How often clients did each thing: claims, completions, refusals, …
    pub counts: BTreeMap<&'static str, u64>,
    /// How often each kind of fault happened.
    pub faults: BTreeMap<&'static str, u64>,
    /// The longest that a bystander waited for a ready task.
    pub longest_wait_ms: u64,
    /// The scenarios that were played.
    pub scenarios: Vec<&'static str>,
    pub violations: Vec<String>,
}

impl Report {
    pub fn empty(database: Database, seed: u64) -> Self {
        let (counts, faults, scenarios, violations) = Default::default();
        Self { database, seed, seconds: 0, counts, faults, longest_wait_ms: 0, scenarios, violations }
    }

    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, seed {}, {} s", self.database, self.seed, self.seconds)?;
        for (name, count) in self.counts.iter().chain(&self.faults) {
            writeln!(f, "  {name:<24}{count:>8}")?;
        }
        writeln!(f, "  {:<24}{:>8} ms", "longest wait", self.longest_wait_ms)?;
        writeln!(f, "  {:<24}{:>8}", "scenarios", self.scenarios.len())?;
        writeln!(f, "  {:<24}{:>8}", "violations", self.violations.len())?;
        self.violations.iter().try_for_each(|what| writeln!(f, "violated: {what}"))
    }
}
