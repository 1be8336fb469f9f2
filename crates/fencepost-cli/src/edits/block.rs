//! Lines of ours in a Markdown file, between two comments.

use super::{append, cut, line_number, newline, whole_lines};
use std::ops::Range;

/// Lines between markers.
#[derive(Debug, Clone)]
pub struct Block {
    /// Lines without the last line end.
    pub lines: String,
    /// A sentence in the first marker, for people who find it.
    pub note: String,
}

const BEGIN: &str = "<!-- fence: begin";
const END: &str = "<!-- fence: end -->";

impl Block {
    /// The text with our lines, current.
    pub fn apply(&self, text: Option<&str>) -> Result<String, String> {
        let newline = newline(text.unwrap_or_default());
        let block =
            format!("{BEGIN} {} -->\n{}\n{END}", self.note, self.lines.trim_end()).replace('\n', newline);
        match text.map(find).transpose()?.flatten() {
            Some(lines) => {
                let text = text.unwrap_or_default();
                let (old, rest) = (&text[lines.clone()], &text[lines.end..]);
                let end = &old[old.trim_end_matches(['\n', '\r']).len()..];
                Ok(format!("{}{block}{end}{rest}", &text[..lines.start]))
            }
            None if text.is_some_and(|text| text.ends_with('\r')) => Err("it ends in half a line end".into()),
            None => Ok(append(text, &block, newline)),
        }
    }

    /// The text without our lines. `None`: we made the file.
    pub fn remove(&self, text: &str) -> Result<Option<String>, String> {
        Ok(match find(text)? {
            Some(lines) => cut(text, lines),
            None => Some(text.to_owned()),
        })
    }
}

/// The lines from one marker to the other.
fn find(text: &str) -> Result<Option<Range<usize>>, String> {
    let at_margin = |marker: &str| -> Vec<usize> {
        let starts_line = |at: &usize| *at == super::jsonc::bom(text) || text[..*at].ends_with('\n');
        text.match_indices(marker).map(|(at, _)| at).filter(starts_line).collect()
    };
    match (&at_margin(BEGIN)[..], &at_margin(END)[..]) {
        ([], []) => Ok(None),
        ([begin], [end]) if begin < end => Ok(Some(whole_lines(text, *begin..*end))),
        (begins, ends) => {
            let lines = begins.iter().chain(ends).map(|at| line_number(text, *at).to_string());
            let lines = lines.collect::<Vec<_>>().join(", ");
            Err(format!("the markers `{BEGIN} … -->` and `{END}` are not one pair (line {lines})"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(lines: &str) -> Block {
        Block { lines: lines.into(), note: "(ours)".into() }
    }

    #[test]
    fn the_block_goes_in_and_out() {
        let ours = "<!-- fence: begin (ours) -->\nline\n<!-- fence: end -->";
        for (before, after) in [
            (None, format!("{ours}\n")),
            (Some(""), ours.to_owned()),
            (Some("# A\n"), format!("# A\n\n{ours}\n")),
            (Some("# A"), format!("# A\n{ours}")),
            (Some("a\r\n"), format!("a\n\n{ours}\n").replace('\n', "\r\n")),
            (Some("\n"), format!("\n\n{ours}\n")),
            (Some("\u{feff}"), format!("\u{feff}{ours}")),
        ] {
            let applied = block("line\n").apply(before);
            assert_eq!(applied.as_deref(), Ok(after.as_str()), "{before:?}");
            assert_eq!(block("line").apply(Some(&after)), applied, "twice");
            assert_eq!(block("other").remove(&after), Ok(before.map(str::to_owned)), "{after:?}");
        }
        let stale = format!("a\n\n{ours}\n\nb\n");
        assert_eq!(block("new").apply(Some(&stale)), Ok(stale.replace("line", "new")));
        assert_eq!(block("new").remove(&stale), Ok(Some("a\n\nb\n".into())));
        for broken in [format!("{ours}\n{ours}"), ours.replace("end", "ende"), ours.replace("begin", "bega")]
        {
            assert!(block("x").apply(Some(&broken)).is_err_and(|e| e.contains("are not one pair (line ")));
            assert!(block("x").remove(&broken).is_err());
        }
        // Not at the margin: an example in the text.
        let quoted = "    <!-- fence: begin -->\n";
        assert_eq!(block("x").remove(quoted), Ok(Some(quoted.into())));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_removal_restores_every_byte(text in "(a|#|\n|\r\n| |é){0,12}") {
            let with = block("line").apply(Some(&text)).expect("applied");
            prop_assert_eq!(block("line").apply(Some(&with)).expect("twice"), with.clone());
            prop_assert_eq!(block("line").remove(&with), Ok(Some(text)));
        }
    }
}
