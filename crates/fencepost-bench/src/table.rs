//! Printing figures, and the last table, which compares some of them with targets.

use std::time::Duration;

/// Figures with their targets.
#[derive(Debug, Default)]
pub struct Targets(Vec<Target>);

#[derive(Debug)]
struct Target {
    what: String,
    reached: f64,
    wanted: &'static str,
}

impl Targets {
    pub fn push(&mut self, what: impl Into<String>, reached: f64, wanted: &'static str) {
        self.0.push(Target { what: what.into(), reached, wanted });
    }

    pub fn print(&self) {
        println!("\nTargets");
        for Target { what, reached, wanted } in &self.0 {
            println!("  {what:<66} {reached:>6.2}   (target {wanted})");
        }
    }
}

pub fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// How long each call took, and all of them together.
#[derive(Debug, Default)]
pub struct Spans {
    each: Vec<Duration>,
    all: Duration,
}

impl Spans {
    pub fn new(mut each: Vec<Duration>, all: Duration) -> Self {
        each.sort_unstable();
        Self { each, all }
    }

    /// Calls a second.
    pub fn rate(&self) -> f64 {
        self.each.len() as f64 / self.all.as_secs_f64()
    }

    /// The time in milliseconds that this percentage of the calls did not exceed.
    pub fn percentile(&self, percent: usize) -> f64 {
        let at = (self.each.len() * percent / 100).min(self.each.len().saturating_sub(1));
        self.each.get(at).map_or(f64::NAN, |span| span.as_secs_f64() * 1e3)
    }

    /// `12345/s  1.23  4.56`: the rate, p50 and p99 in milliseconds.
    pub fn row(&self) -> String {
        format!("{:>8.0}/s {:>6.2} {:>6.2}", self.rate(), self.percentile(50), self.percentile(99))
    }
}
