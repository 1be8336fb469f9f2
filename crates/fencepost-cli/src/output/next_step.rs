//! The next step for each error code: the hint of an error that has none of its own.
//!
//! `docs/errors.md` has the same sentences, so that a reader of the page and a reader of the hint do the same.

use fencepost::Code;

/// The next step, and the place of the code in the documents. The next step alone is enough for a user who has only the binary.
pub fn hint(code: Code) -> String {
    format!("{} (docs/errors.md#{code})", next_step(code))
}

fn next_step(code: Code) -> &'static str {
    match code {
        Code::Internal => {
            "this is a defect: fence doctor checks the fleet; report the command and this message"
        }
        Code::Invalid => "the command's --help says what it takes",
        Code::NotFound => {
            "check the name: fence list, fence board, fence agent and fence mail show what there is"
        }
        Code::Unauthorized => "set FENCE_KEY to a key of this fleet; an admin makes one with fence key add",
        Code::Forbidden => "use a key whose role allows it; an admin makes one with fence key add",
        Code::TooLarge => "make it smaller, or split it",
        Code::Unavailable => "fence doctor looks for the cause; if it is passing, try again",
        Code::OutcomeUnknown => "look before you repeat it: fence claims and fence events say what was done",
        Code::NoneReady => {
            "wait for something to take with --wait; fence list shows the tasks, fence why says what one waits for"
        }
        Code::BoardFinished => "stop here, or plan more with fence add",
        Code::AlreadyClaimed => "take something else, or wait for it with --wait",
        Code::NotReady => "see its state: fence show ID, and fence why ID for what it waits for",
        Code::LeaseExpired => {
            "stop this work and push nothing: your claim is over; fence claim takes something else"
        }
        Code::AlreadyFinished => "stop this work: fence show ID tells how it ended",
        Code::Cancelled => "stop this work; fence claim takes something else",
        Code::Suppressed => "try again later",
        Code::RateLimited => "try again later, after retry_after_ms where the reply names it",
        Code::Paused => {
            "wait until it is resumed: fence agent resume NAME, or fence mail resume BOX for a mailbox"
        }
        Code::BudgetRefused => {
            "wait with --wait until the limit frees, or raise it: fence spend shows the limits, fence spend set raises one"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    const PAGE: &str = include_str!("../../../../docs/errors.md");

    /// Every code there is, from the schema that programs are given.
    fn all() -> Vec<Code> {
        fn names(schema: &Value, found: &mut Vec<Code>) {
            match schema {
                Value::Object(fields) => {
                    let listed = fields.get("enum").and_then(Value::as_array).into_iter().flatten();
                    let names_of_codes = listed.chain(fields.get("const"));
                    found.extend(
                        names_of_codes.map(|name| serde_json::from_value::<Code>(name.clone()).unwrap()),
                    );
                    fields.get("oneOf").into_iter().for_each(|schema| names(schema, found));
                }
                Value::Array(schemas) => schemas.iter().for_each(|schema| names(schema, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        names(schemars::schema_for!(Code).as_value(), &mut found);
        found
    }

    #[test]
    fn the_page_explains_every_code() {
        let codes = all();
        assert!(codes.len() >= 19, "{codes:?}");
        let sections: Vec<&str> = PAGE.split("\n## ").skip(1).collect();
        let explained: Vec<&str> = sections.iter().filter_map(|text| text.lines().next()).collect();
        assert_eq!(explained, codes.iter().map(|code| code.as_str()).collect::<Vec<_>>());
        let (table, _) = PAGE.split_once("\n## ").expect("a table before the codes");
        for (code, section) in codes.into_iter().zip(sections) {
            let (exit, http) = (code.exit_code(), code.http_status());
            assert!(section.contains(&format!("\n\nExit {exit}, HTTP {http}.\n\nWhen: ")), "{section}");
            assert!(section.contains(&format!("\n\nNext: {}\n", next_step(code))), "{section}");
            let row = table.lines().find(|line| line.contains(&format!("[`{code}`](#{code})")));
            let row = row.unwrap_or_else(|| panic!("{code} is not in the table"));
            assert!(row.starts_with(&format!("| {exit} |")), "{row}");
        }
    }

    #[test]
    fn a_hint_names_the_anchor() {
        assert_eq!(hint(Code::TooLarge), "make it smaller, or split it (docs/errors.md#too_large)");
    }
}
