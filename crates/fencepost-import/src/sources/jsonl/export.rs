use super::format;
use crate::target::{Target, call};
use fencepost::{Result, admin};
use futures_util::future::LocalBoxFuture;
use std::collections::BTreeMap;

/// Writes the fleet, or only these boards, as lines of JSON. Returns how many items of each type there were. `write` returns
/// false when nobody reads any more; the export ends there.
pub fn export<'e>(
    target: &'e dyn Target,
    boards: &'e [String],
    write: &'e mut dyn FnMut(&str) -> Result<bool>,
) -> LocalBoxFuture<'e, Result<BTreeMap<&'static str, usize>>> {
    Box::pin(async move {
        let about = call(target, admin::About {}).await?;
        let mut counts = BTreeMap::new();
        let (mut after, mut is_first) = (None, true);
        loop {
            let page = admin::Export { after, limit: None, boards: boards.to_vec() };
            let page = call(target, page).await?;
            // Only after the first page arrived: a caller that may not read the fleet leaves no file behind.
            if is_first {
                write(&format::header(about.now, &about.database.kind, boards)?)?;
                is_first = false;
            }
            if !write(&format::page(&page, &mut counts)?)? {
                return Ok(counts);
            }
            after = page.next;
            let written: usize = counts.values().sum();
            if after.is_none() {
                write(&format::end(written)?)?;
                return Ok(counts);
            }
            target.progress(&format!("exporting: {written} items"));
        }
    })
}
