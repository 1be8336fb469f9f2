//! The plan of a loop: its stories and limits. It is given as fields of a request, or as the text of a `prd.json`.

use crate::{
    error::{Error, Result},
    ids::clip,
    limits::{BODY_MAX, DEPENDENCIES_MAX, NAME_MAX, TEXT_MAX, TITLE_MAX, check},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet};

pub const MAX_RETRIES: i64 = 2;
pub const MAX_ITERATIONS: i64 = 100;
const STORIES_MAX: usize = 1000;
const CRITERIA_MAX: usize = 100;

/// A story: a unit of work with its acceptance criteria.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Story {
    /// Letters, digits and any of `._-`. It is part of the name of a branch: `loop/LOOP/STORY`.
    pub id: String,
    pub title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub acceptance_criteria: Vec<String>,
    /// 0 to 100, higher first (default 50).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The stories that must have passed before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// It has passed already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passes: bool,
    /// It is left out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
}

/// The stories and the limits of a loop, as it was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    pub stories: Vec<Story>,
    pub max_retries: i64,
    pub max_iterations: i64,
    pub run_dependents: bool,
}

/// A file `prd.json`. Programs write other fields into it, too; they are ignored.
#[derive(Debug, Deserialize)]
struct Prd {
    #[serde(default, alias = "name", alias = "title")]
    project: Option<String>,
    #[serde(alias = "userStories", alias = "user_stories")]
    stories: Vec<PrdStory>,
}

#[derive(Debug, Deserialize)]
struct PrdStory {
    id: String,
    title: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default, alias = "acceptanceCriteria")]
    acceptance_criteria: Option<Criteria>,
    #[serde(default)]
    priority: Option<i64>,
    #[serde(default, alias = "dependsOn", alias = "depends_on", alias = "dependencies")]
    after: Option<Vec<String>>,
    #[serde(default)]
    passes: Option<bool>,
    #[serde(default)]
    skipped: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Criteria {
    One(String),
    Many(Vec<String>),
}

/// Reads a `prd.json`: its project and its stories. Its lowest priority runs first, and stories of one priority run in the order
/// of the file, so the stories are put in that order and all get the same priority.
pub(super) fn read_prd(prd: &Value) -> Result<(Option<String>, Vec<Story>)> {
    let prd: Prd = serde_path_to_error::deserialize(prd).map_err(|e| {
        let path = e.path().to_string();
        let field = if path == "." { "prd".to_owned() } else { format!("prd.{path}") };
        Error::invalid(&field, format!("does not fit: {}", e.inner()))
    })?;
    let mut stories = prd.stories;
    stories.sort_by_key(|story| story.priority.unwrap_or(i64::MAX));
    let story = |story: PrdStory| Story {
        id: story.id,
        title: story.title,
        description: story.description,
        acceptance_criteria: match story.acceptance_criteria {
            None => Vec::new(),
            Some(Criteria::One(text)) => vec![text],
            Some(Criteria::Many(list)) => list,
        },
        priority: None,
        after: story.after.unwrap_or_default(),
        passes: story.passes == Some(true),
        skipped: story.skipped == Some(true),
    };
    Ok((prd.project, stories.into_iter().map(story).collect()))
}

/// Checks the name of a loop or a story: it is part of the name of a branch.
pub(super) fn check_name(field: &str, name: &str) -> Result<()> {
    check::plain_name(field, name)?;
    let problem = match name {
        // `loop/LOOP/main` is the branch that the stories are merged into.
        _ if name.eq_ignore_ascii_case("main") && field != "loop" => {
            "is `main`, which names the loop's own branch"
        }
        _ if name.contains("..") => "has two dots in a row, which the name of a branch cannot have",
        _ if name.ends_with('.') || name.ends_with(".lock") => "ends as the name of a branch cannot end",
        _ => return Ok(()),
    };
    Err(Error::invalid(field, problem))
}

impl Plan {
    pub fn check(&self) -> Result<()> {
        if let Some(project) = &self.project {
            check::line("project", project, TITLE_MAX)?;
        }
        check::range("max_retries", self.max_retries, 0, 100)?;
        check::range("max_iterations", self.max_iterations, 1, 100_000)?;
        check::range("stories", self.stories.len() as i64, 1, STORIES_MAX as i64)?;
        let mut places: HashMap<String, usize> = HashMap::new();
        for (n, story) in self.stories.iter().enumerate() {
            let field = |name: &str| format!("stories[{n}].{name}");
            check_name(&field("id"), &story.id)?;
            // Branches are files, and some file systems do not tell capitals apart.
            if let Some(other) = places.insert(story.id.to_ascii_lowercase(), n) {
                let message = format!("is `{}`, the id of story {} already", story.id, other + 1);
                return Err(Error::invalid(&field("id"), message));
            }
            check::line(&field("title"), &story.title, TITLE_MAX)?;
            check::optional_text(&field("description"), story.description.as_deref(), BODY_MAX)?;
            check::range(
                &field("acceptance_criteria"),
                story.acceptance_criteria.len() as i64,
                0,
                CRITERIA_MAX as i64,
            )?;
            for criterion in &story.acceptance_criteria {
                check::line(&field("acceptance_criteria"), criterion, TEXT_MAX)?;
            }
            check::text(&field("acceptance_criteria"), &story.criteria().unwrap_or_default(), TEXT_MAX)?;
            check::range(&field("priority"), story.priority.unwrap_or(50), 0, 100)?;
            check::range(&field("after"), story.after.len() as i64, 0, DEPENDENCIES_MAX as i64)?;
            if story.passes && story.skipped {
                return Err(Error::invalid(&field("skipped"), "and `passes` cannot both be true"));
            }
        }
        let ids: HashSet<&str> = self.stories.iter().map(|story| story.id.as_str()).collect();
        for (n, story) in self.stories.iter().enumerate() {
            if let Some(unknown) = story.after.iter().find(|after| !ids.contains(after.as_str())) {
                let field = format!("stories[{n}].after");
                return Err(Error::invalid(
                    &field,
                    format!("names `{}`, which is no story of the plan", clip(unknown)),
                ));
            }
        }
        self.refuse_cycles()
    }

    /// Repeatedly removes the stories that wait for none of the others. The stories that are left form a cycle.
    fn refuse_cycles(&self) -> Result<()> {
        let mut left: Vec<&Story> = self.stories.iter().collect();
        loop {
            let ids: HashSet<&str> = left.iter().map(|story| story.id.as_str()).collect();
            let before = left.len();
            left.retain(|story| story.after.iter().any(|after| ids.contains(after.as_str())));
            if left.is_empty() {
                return Ok(());
            }
            if left.len() == before {
                let cycle: Vec<&str> = left.iter().map(|story| story.id.as_str()).collect();
                return Err(Error::invalid("after", format!("forms a cycle through {}", cycle.join(", "))));
            }
        }
    }

    /// The differences of another plan, in words. That a story passes or is skipped is a state, which changes as the loop goes on.
    pub fn differences(&self, other: &Plan) -> Vec<String> {
        let mut differences = Vec::new();
        let mut differ = |what: &str, was: String, is: String| {
            if was != is {
                differences.push(format!("{what} was {was} and is {is}"));
            }
        };
        let text = |text: &Option<String>| {
            text.as_ref().map_or("not given".into(), |text| format!("`{}`", clip(text)))
        };
        differ("project", text(&self.project), text(&other.project));
        differ("max_retries", self.max_retries.to_string(), other.max_retries.to_string());
        differ("max_iterations", self.max_iterations.to_string(), other.max_iterations.to_string());
        differ("run_dependents", self.run_dependents.to_string(), other.run_dependents.to_string());
        let by_id = |plan: &'_ Plan| -> HashMap<String, Story> {
            plan.stories.iter().map(|story| (story.id.clone(), story.clone())).collect()
        };
        let (ours, theirs) = (by_id(self), by_id(other));
        for story in &self.stories {
            let Some(new) = theirs.get(&story.id) else {
                differences.push(format!("story `{}` is missing", story.id));
                continue;
            };
            let quoted = |text: &str| format!("`{}`", clip(text));
            let mut differ = |what: &str, was: String, is: String| {
                if was != is {
                    // Long texts may differ after the part that is shown.
                    let (was, is) = (quoted(&was), quoted(&is));
                    let shown = if was == is { "changed".into() } else { format!("was {was} and is {is}") };
                    differences.push(format!("story `{}`: {what} {shown}", story.id));
                }
            };
            let sorted = |list: &[String]| {
                list.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
            };
            differ("title", story.title.clone(), new.title.clone());
            differ(
                "description",
                story.description.clone().unwrap_or_default(),
                new.description.clone().unwrap_or_default(),
            );
            differ(
                "acceptance_criteria",
                story.acceptance_criteria.join("; "),
                new.acceptance_criteria.join("; "),
            );
            differ(
                "priority",
                story.priority.unwrap_or(50).to_string(),
                new.priority.unwrap_or(50).to_string(),
            );
            differ("after", sorted(&story.after), sorted(&new.after));
        }
        for story in other.stories.iter().filter(|story| !ours.contains_key(&story.id)) {
            differences.push(format!("story `{}` is new", story.id));
        }
        let order = |plan: &Plan| plan.stories.iter().map(|story| story.id.clone()).collect::<Vec<_>>();
        if differences.is_empty() && order(self) != order(other) {
            differences.push(format!(
                "the order was {} and is {}",
                order(self).join(", "),
                order(other).join(", ")
            ));
        }
        differences
    }
}

impl Story {
    /// The acceptance criteria as one text.
    pub fn criteria(&self) -> Option<String> {
        let lines: Vec<String> =
            self.acceptance_criteria.iter().map(|criterion| format!("- {criterion}")).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

/// Checks the id of a commit. Only the repository knows whether there is such a commit.
pub(super) fn check_commit(commit: Option<&str>) -> Result<()> {
    let is_id =
        |id: &str| (7..=NAME_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    match commit {
        Some(id) if !is_id(id) => Err(Error::invalid(
            "commit",
            format!("is `{}`, not the id of a commit: 7 or more hexadecimal digits", clip(id)),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn story(id: &str, after: &[&str]) -> Story {
        let after = after.iter().map(ToString::to_string).collect();
        Story { id: id.into(), title: format!("do {id}"), after, ..Story::default() }
    }

    fn plan(stories: Vec<Story>) -> Plan {
        Plan { project: None, stories, max_retries: 2, max_iterations: 100, run_dependents: false }
    }

    #[test]
    fn a_plan_that_makes_no_sense_is_refused() {
        plan(vec![story("b", &["a"]), story("a", &[])]).check().unwrap();
        let untitled = Story { title: " ".into(), ..story("a", &[]) };
        let both = Story { passes: true, skipped: true, ..story("a", &[]) };
        for (stories, says) in [
            (vec![], "`stories` is 0"),
            (
                vec![story("a", &["c"]), story("b", &["a"]), story("c", &["b"]), story("d", &[])],
                "cycle through a, b, c",
            ),
            (vec![story("a", &["a"])], "cycle through a"),
            (vec![story("a", &["x"])], "`stories[0].after` names `x`, which is no story of the plan"),
            (
                vec![story("a", &[]), story("b", &[]), story("A", &[])],
                "`stories[2].id` is `A`, the id of story 1 already",
            ),
            (vec![untitled], "`stories[0].title` is empty"),
            (vec![both], "cannot both be true"),
            (vec![story("main", &[])], "names the loop's own branch"),
            (vec![story("a..b", &[])], "two dots"),
            (vec![story("a.lock", &[])], "cannot end"),
            (vec![story("a/b", &[])], "has a '/'"),
        ] {
            let error = plan(stories).check().expect_err(says);
            assert!(error.message().contains(says), "{error}");
        }
        assert!(check_name("loop", "main").is_ok());
    }

    #[test]
    fn a_prd_is_read_in_the_order_of_its_priorities() {
        let prd = json!({"title": "shop", "branchName": "x", "stories": [
            {"id": "S-2", "title": "second", "priority": 2, "acceptance_criteria": "it works", "notes": ""},
            {"id": "S-9", "title": "last"},
            {"id": "S-1", "title": "first", "priority": 1, "acceptanceCriteria": ["a", "b"], "dependsOn": ["S-0"], "passes": false},
            {"id": "S-0", "title": "done", "priority": 1, "passes": true},
            {"id": "S-3", "title": "out", "priority": 3, "skipped": true}]});
        let (project, stories) = read_prd(&prd).unwrap();
        let told: Vec<_> = stories.iter().map(|s| (s.id.as_str(), s.passes, s.skipped, s.priority)).collect();
        assert_eq!(project.as_deref(), Some("shop"));
        let expected = [
            ("S-1", false, false),
            ("S-0", true, false),
            ("S-2", false, false),
            ("S-3", false, true),
            ("S-9", false, false),
        ];
        assert_eq!(told, expected.map(|(id, passes, skipped)| (id, passes, skipped, None)));
        assert_eq!(
            (stories[0].after[0].as_str(), stories[0].criteria().as_deref()),
            ("S-0", Some("- a\n- b"))
        );
        assert_eq!(stories[2].acceptance_criteria, ["it works"]);
        let error = read_prd(&json!({"stories": [{"id": "a"}]})).unwrap_err();
        assert_eq!(error.message(), "`prd.stories[0]` does not fit: missing field `title`");
        assert!(read_prd(&json!({})).unwrap_err().message().contains("missing field `stories`"));
    }

    #[test]
    fn differences_are_named() {
        let first = plan(vec![story("a", &[]), story("b", &["a"])]);
        let passed = Story { passes: true, ..story("a", &[]) };
        assert_eq!(first.differences(&plan(vec![passed, story("b", &["a"])])), Vec::<String>::new());
        let other = Plan {
            max_retries: 5,
            ..plan(vec![Story { title: "do more".into(), ..story("b", &[]) }, story("c", &[])])
        };
        assert_eq!(
            first.differences(&other),
            [
                "max_retries was 2 and is 5",
                "story `a` is missing",
                "story `b`: title was `do b` and is `do more`",
                "story `b`: after was `a` and is ``",
                "story `c` is new",
            ]
        );
        assert_eq!(
            first.differences(&plan(vec![story("b", &["a"]), story("a", &[])])),
            ["the order was a, b and is b, a"]
        );
    }

    #[test]
    fn commits_are_hexadecimal() {
        assert!(check_commit(None).is_ok() && check_commit(Some("0a1b2c3")).is_ok());
        for bad in ["", "HEAD", "0a1b2c", "0a1b2c3 "] {
            assert!(check_commit(Some(bad)).is_err(), "{bad}");
        }
    }
}
