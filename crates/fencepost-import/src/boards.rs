//! Names of boards, and tasks that move to a board of another name.

use fencepost::{Code, Error, Result, TaskId};
use std::collections::BTreeSet;

/// Tasks of the board `from` go to the board `to`.
#[derive(Debug, Clone)]
pub struct Renaming {
    pub from: String,
    pub to: String,
}

pub fn is_board(name: &str) -> bool {
    format!("{name}-1").parse::<TaskId>().is_ok()
}

/// Fails if a board that is to be renamed is not in the file: a typing error would put its tasks where nobody looks for
/// them. `what` is the source's own word for a board.
pub(crate) fn check(renamings: &[Renaming], what: &str, in_file: &BTreeSet<String>) -> Result<()> {
    let Some(unknown) = renamings.iter().find(|renaming| !in_file.contains(&renaming.from)) else {
        return Ok(());
    };
    let names: Vec<_> = in_file.iter().map(|name| format!("`{name}`")).collect();
    let hint = match names.is_empty() {
        true => "the file has no tasks".into(),
        false => format!("the file has {}", names.join(", ")),
    };
    Err(Error::new(Code::Invalid, format!("there is no {what} `{}`", unknown.from))
        .with("field", "board")
        .hint(hint))
}

/// The new name of a board, if it gets one.
pub(crate) fn renamed<'r>(renamings: &'r [Renaming], board: &str) -> Option<&'r str> {
    renamings.iter().find(|renaming| renaming.from == board).map(|renaming| renaming.to.as_str())
}
