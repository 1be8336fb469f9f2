//! Time in use: the age of request ids and history counts only time in which the fleet was used. A caller thus has the
//! full time to retry a request. Only one hour of a longer gap between two calls counts. A clock that jumped ahead
//! looks the same as a gap.

use crate::{
    clock::{Millis, Time},
    db::{Batch, Row, Stmt, Tx},
    error::Result,
    params,
};

/// This much of a longer gap between two calls that write counts.
pub(crate) const HOUR: Millis = Millis::minutes(60);

/// Time that does not count, and when the gap ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    at: Time,
    ms: Millis,
}

#[derive(Debug)]
pub(crate) struct InUse {
    now: Time,
    /// The gap since the last stored call, if it is one: on PostgreSQL the time is stored after the call.
    last: Option<Gap>,
    /// The stored gaps, the latest first.
    gaps: Vec<Gap>,
}

impl InUse {
    pub async fn read(tx: &mut Tx<'_>) -> Result<Self> {
        let mut batch = Batch::new();
        let seen = batch.add(Stmt::read("select seen_at from fleet", params![]));
        let gaps = batch.add(Stmt::read("select at, ms from gap order by at desc", params![]));
        let mut answers = tx.send(batch).await?;
        let read = |row: &Row| Ok(Gap { at: row.get("at")?, ms: row.get("ms")? });
        let gaps = answers.take(gaps).rows.iter().map(read).collect::<Result<Vec<_>>>()?;
        let seen = answers.take(seen).rows[0].get("seen_at")?;
        let last = uncounted(seen, tx.now).map(|ms| Gap { at: tx.now, ms });
        Ok(Self { now: tx.now, last, gaps })
    }

    /// The time since which the fleet was in use for `age`.
    pub fn ago(&self, age: Millis) -> Time {
        let mut at = Time(self.now.0 - age.0);
        for gap in self.last.iter().chain(&self.gaps) {
            if gap.at <= at {
                break;
            }
            at = Time(at.0 - gap.ms.0);
        }
        at
    }

    /// `now` without the part of the gap since the last stored call that does not count. For statements that read the
    /// stored gaps themselves.
    pub fn now(&self) -> Time {
        self.last.map_or(self.now, |gap| Time(self.now.0 - gap.ms.0))
    }
}

/// The part of the time since the last call that does not count.
pub(crate) fn uncounted(last: Option<Time>, now: Time) -> Option<Millis> {
    let ms = now.since(last?).0 - HOUR.0;
    (ms > 0).then_some(Millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_do_not_count_as_age() {
        let day = Millis::days(1).0;
        let at = |days: i64| Time(days * day);
        let gap = |days: i64, ms: i64| Gap { at: at(days), ms: Millis(ms * day) };
        let in_use = |gaps: &[Gap]| InUse { now: at(100), last: None, gaps: gaps.to_vec() };
        assert_eq!(in_use(&[]).ago(Millis::days(7)), at(93));
        // Forty days that do not count ended a day ago: before them, six of the seven days are left.
        assert_eq!(in_use(&[gap(99, 40)]).ago(Millis::days(7)), at(53));
        // A gap before the window changes nothing.
        assert_eq!(in_use(&[gap(90, 40)]).ago(Millis::days(7)), at(93));
        // The first gap extends the window, which then reaches the second.
        assert_eq!(in_use(&[gap(99, 2), gap(92, 3)]).ago(Millis::days(7)), at(88));
        // A gap that is not stored yet does the same.
        let unstored = InUse { last: Some(gap(100, 40)), ..in_use(&[gap(99, 2)]) };
        assert_eq!((unstored.ago(Millis::days(7)), unstored.now()), (at(51), at(60)));
    }

    #[test]
    fn an_hour_counts() {
        let at = |minutes: i64| Time(minutes * 60_000);
        assert_eq!(uncounted(None, at(500)), None);
        assert_eq!(uncounted(Some(at(0)), at(60)), None);
        assert_eq!(uncounted(Some(at(0)), at(90)), Some(Millis::minutes(30)));
        assert_eq!(uncounted(Some(at(90)), at(0)), None);
    }
}
