//! The conditions of a rule.

use crate::{
    error::Result,
    limits::{NAME_MAX, check},
    ops::inbox::Content,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Conditions on a message. A field that is left out matches anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rule {
    /// `slack`, `github`, or another source.
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Such as `acme/api`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// `issues.opened`, or `issues` for all its events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// Words that the message contains: whole words, ignoring case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Also match messages from programs, which include the agents' own answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bots: bool,
}

impl Rule {
    fn parts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let parts = [
            ("channel", &self.channel),
            ("user", &self.user),
            ("repository", &self.repository),
            ("event", &self.event),
            ("text", &self.text),
        ];
        parts.into_iter().filter_map(|(name, part)| Some((name, part.as_deref()?)))
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.check_at("")
    }

    /// `at` is the rule's position in the request.
    pub(crate) fn check_at(&self, at: &str) -> Result<()> {
        check::plain_name(&format!("{at}source"), &self.source)?;
        self.parts().try_for_each(|(field, part)| check::line(&format!("{at}{field}"), part, NAME_MAX))
    }

    pub(crate) fn matches(&self, content: &Content) -> bool {
        let fits = |wanted: &Option<String>, given: &Option<String>, fit: fn(&str, &str) -> bool| match wanted
        {
            None => true,
            Some(wanted) => given.as_ref().is_some_and(|given| fit(wanted, given)),
        };
        self.source == content.source
            && (self.bots || !content.bot)
            && fits(&self.channel, &content.channel, is_same)
            && fits(&self.user, &content.sender, is_same)
            && fits(&self.repository, &content.repository, is_same)
            && fits(&self.event, &content.event, is_of)
            && self.text.as_ref().is_none_or(|text| contains(&content.text, text))
    }
}

/// Readable form: `source github, repository acme/api, event issues.opened`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "source {}", self.source)?;
        self.parts().try_for_each(|(name, part)| write!(f, ", {name} {part}"))?;
        if self.bots { f.write_str(", also bots") } else { Ok(()) }
    }
}

/// Ignoring case is safe: no two GitHub names or Slack ids differ only in case.
fn is_same(wanted: &str, given: &str) -> bool {
    wanted.eq_ignore_ascii_case(given)
}

/// The same event, or one of its group: `issues` matches `issues.opened`.
fn is_of(wanted: &str, given: &str) -> bool {
    match given.split_at_checked(wanted.len()) {
        Some((head, rest)) => is_same(wanted, head) && (rest.is_empty() || rest.starts_with('.')),
        None => false,
    }
}

/// Whether the text contains the words as whole words: `art` is not in `start`. In scripts without case, such as
/// Chinese, words are not separated, so any position matches.
fn contains(text: &str, words: &str) -> bool {
    let (text, words) = (text.to_lowercase(), words.to_lowercase());
    let joins = |c: Option<char>| c.is_some_and(|c| c.is_lowercase() || c.is_numeric());
    let (first, last) = (words.chars().next(), words.chars().next_back());
    text.match_indices(&words).any(|(at, found)| {
        let (before, after) = (text[..at].chars().next_back(), text[at + found.len()..].chars().next());
        let is_part = joins(first) && joins(before) || joins(last) && joins(after);
        !is_part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        let mut rule = Rule { source: "slack".into(), ..Rule::default() };
        for part in text.split("; ").filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let given = Some(value.to_owned());
            match name {
                "source" => rule.source = value.into(),
                "channel" => rule.channel = given,
                "user" => rule.user = given,
                "repository" => rule.repository = given,
                "event" => rule.event = given,
                "text" => rule.text = given,
                "bots" => rule.bots = true,
                _ => panic!("{part}"),
            }
        }
        rule
    }

    fn content() -> Content {
        Content {
            source: "slack".into(),
            text: "Hey <@U9>, please Deploy the API now: 2nd try!".into(),
            channel: Some("C024".into()),
            sender: Some("U7".into()),
            repository: Some("Acme/api".into()),
            event: Some("issues.opened".into()),
            ..Content::default()
        }
    }

    #[test]
    fn which_rules_match() {
        for (wanted, fits) in [
            ("", true),
            ("source=github", false),
            ("channel=C024", true),
            ("channel=c024", true),
            ("channel=C02", false),
            ("channel=C0244", false),
            ("user=U7", true),
            ("user=U8", false),
            ("repository=acme/API", true),
            ("repository=acme", false),
            ("event=issues.opened", true),
            ("event=issues", true),
            ("event=issue", false),
            ("event=issues.opened.now", false),
            ("event=issues.open", false),
            ("text=deploy", true),
            ("text=DEPLOY THE api", true),
            ("text=deploy api", false),
            ("text=ploy", false),
            ("text=dep", false),
            ("text=nd", false),
            ("text=2nd", true),
            ("text=now", true),
            ("text=try!", true),
            ("text=<@U9>", true),
            ("text=@U9", true),
            ("text=@U", false),
            ("text=U9>, p", false),
            ("channel=C024; user=U7; repository=acme/api; event=issues; text=deploy", true),
            ("channel=C024; user=U7; repository=acme/api; event=issues; text=rollback", false),
            ("channel=C025; text=deploy", false),
        ] {
            assert_eq!(rule(wanted).matches(&content()), fits, "{wanted}");
        }
    }

    #[test]
    fn a_missing_field_does_not_match() {
        let bare = Content { source: "slack".into(), text: "deploy".into(), ..Content::default() };
        for wanted in ["channel=C024", "user=U7", "repository=acme/api", "event=issues"] {
            assert!(!rule(wanted).matches(&bare), "{wanted}");
        }
        assert!(rule("text=deploy").matches(&bare));
    }

    #[test]
    fn bots_match_only_rules_for_bots() {
        let bot = Content { bot: true, ..content() };
        assert!(!rule("").matches(&bot) && !rule("text=deploy").matches(&bot));
        assert!(rule("bots").matches(&bot) && rule("bots").matches(&content()));
    }

    #[test]
    fn words_in_every_script() {
        for (text, words, there) in [
            ("ÜBER alles", "über", true),
            ("gegenüber", "über", false),
            ("請部署到生產環境", "部署", true),
            ("café noir", "CAFÉ", true),
            ("cafés", "café", false),
            ("", "x", false),
            ("x", "xx", false),
            ("aab ab", "ab", true),
        ] {
            assert_eq!(contains(text, words), there, "{words} in {text}");
        }
    }

    #[test]
    fn a_rule_survives_json_and_has_a_readable_form() {
        let whole = rule("channel=C1; user=U1; repository=a/b; event=issues; text=deploy; bots");
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<Rule>(&text).unwrap(), whole);
        assert_eq!(
            whole.to_string(),
            "source slack, channel C1, user U1, repository a/b, event issues, text deploy, also bots"
        );
        assert_eq!(rule("").to_string(), "source slack");
    }
}
