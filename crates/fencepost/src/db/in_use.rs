//! Time in use. Request ids and history are forgotten after a time in which somebody could have asked again. Of a longer time
//! in which nobody called, an hour counts; a clock that jumped ahead looks the same.

use crate::{
    clock::{Millis, Time},
    db::{Batch, Row, Stmt, Tx},
    error::Result,
    params,
};

/// Of a longer time between two calls that write, this much counts.
pub(crate) const HOUR: Millis = Millis::minutes(60);

/// Time that did not count, and when it was over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    at: Time,
    ms: Millis,
}

#[derive(Debug)]
pub(crate) struct InUse {
    now: Time,
    /// Since the last call that is stored: on PostgreSQL the time is stored after the call.
    last: Option<Gap>,
    /// The latest first.
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

    /// When it was that the fleet had been in use for so long since.
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

    /// `now`, as if the time since the last stored call had not passed but for an hour. For statements that read the
    /// other gaps themselves.
    pub fn now(&self) -> Time {
        self.last.map_or(self.now, |gap| Time(self.now.0 - gap.ms.0))
    }
}

/// How much of the time since the last call does not count.
pub(crate) fn uncounted(last: Option<Time>, now: Time) -> Option<Millis> {
    let ms = now.since(last?).0 - HOUR.0;
    (ms > 0).then_some(Millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_used_does_not_age() {
        let day = Millis::days(1).0;
        let at = |days: i64| Time(days * day);
        let gap = |days: i64, ms: i64| Gap { at: at(days), ms: Millis(ms * day) };
        let in_use = |gaps: &[Gap]| InUse { now: at(100), last: None, gaps: gaps.to_vec() };
        assert_eq!(in_use(&[]).ago(Millis::days(7)), at(93));
        // Forty days that did not count, over a day ago: before, six days are left of the seven.
        assert_eq!(in_use(&[gap(99, 40)]).ago(Millis::days(7)), at(53));
        // Before the window it changes nothing.
        assert_eq!(in_use(&[gap(90, 40)]).ago(Millis::days(7)), at(93));
        // The window grows over the first, and so comes to the second.
        assert_eq!(in_use(&[gap(99, 2), gap(92, 3)]).ago(Millis::days(7)), at(88));
        // So does one that is not stored yet.
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
