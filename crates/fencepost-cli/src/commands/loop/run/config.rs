//! The config of a chain: `loop.toml`.

use super::super::duration;
use crate::trust::{self, ProjectFile};
use fencepost::{Code, Error, Millis, Result, loops};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The name of the file in a repository.
pub const FILE: &str = "loop.toml";

/// An example, which `--show-config` prints.
pub const EXAMPLE: &str = include_str!("example.toml");

/// The step in which the chain runs the checks. No step of the config has this name.
pub const CHECKS: &str = "checks";

#[derive(Debug)]
pub struct Config {
    pub steps: Vec<Step>,
    /// Command lines whose results reach the judge.
    pub checks: Vec<String>,
    pub lease: Millis,
    /// Where `loop/LOOP/main` starts; `None`: the branch that is checked out.
    pub base: Option<String>,
    pub at_end: AtEnd,
    /// A command line that prepares a new work tree.
    pub setup: Option<String>,
    /// Ignored files to copy into a new work tree.
    pub copy: Vec<String>,
}

/// Where `loop/LOOP/main` goes when the loop is finished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AtEnd {
    Leave,
    /// It is merged into this branch.
    Merge(String),
    /// It is pushed to this remote.
    Push(String),
}

#[derive(Debug)]
pub struct Step {
    pub name: String,
    pub kind: Kind,
    /// Command lines: the first attempt runs the first one, the next attempt the next one, and so on; the last one for the rest.
    pub tools: Vec<String>,
    pub timeout: Millis,
    /// How often the step is tried again before the story fails.
    pub retries: u32,
    /// It must print a JSON object; a judge also its verdict.
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// It changes files, and the chain commits them.
    Work,
    /// It looks at the commit. A failure fails the story.
    Review,
    /// It looks at the commit, and decides.
    Judge,
}

impl Step {
    /// The command line of an attempt, counted from 0.
    pub fn tool(&self, attempt: usize) -> &str {
        self.tools.get(attempt).or(self.tools.last()).map_or("", String::as_str)
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    steps: Vec<String>,
    #[serde(default)]
    step: BTreeMap<String, toml::Value>,
    #[serde(default)]
    checks: Vec<String>,
    lease: Option<String>,
    base: Option<String>,
    at_end: Option<String>,
    into: Option<String>,
    remote: Option<String>,
    setup: Option<String>,
    #[serde(default)]
    copy: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepTable {
    run: toml::Value,
    kind: Option<Kind>,
    timeout: Option<String>,
    retries: Option<u32>,
    json: Option<bool>,
}

impl Config {
    /// The named file, or `loop.toml` in this directory. The file of a project runs commands, so the user must trust it; a file that the
    /// user names is trusted by that.
    pub fn load(named: Option<&Path>, directory: &Path) -> Result<Self> {
        let (path, text) = match named {
            Some(path) => (path.to_owned(), trust::text(path)?),
            None => {
                let path = directory.join(FILE);
                (path.clone(), project_text(&path)?)
            }
        };
        Self::parse(&text).map_err(|problem| {
            Error::new(Code::Invalid, format!("{}: {problem}", path.display()))
                .hint("fence loop run --show-config prints an example")
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(String::new(), |span| {
                format!("line {}: ", text[..span.start.min(text.len())].matches('\n').count() + 1)
            });
            format!("{line}{}", e.message().trim())
        })?;
        if file.steps.is_empty() {
            return Err("`steps` names no step".into());
        }
        let mut steps: Vec<Step> = Vec::new();
        let mut tables = file.step;
        for name in file.steps {
            if steps.iter().any(|step| step.name == name) {
                return Err(format!("`steps` names `{name}` twice"));
            }
            let is_name =
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
            if !is_name || name == CHECKS {
                return Err(format!("`{name}` cannot be the name of a step"));
            }
            let table = tables.remove(&name);
            let table =
                table.ok_or_else(|| format!("`steps` names `{name}`, and `step.{name}` has no command"))?;
            steps.push(step(name, table)?);
        }
        if let Some(unknown) = tables.keys().next() {
            return Err(format!("`step.{unknown}` is not in `steps`"));
        }
        if let Some(judge) = steps.iter().position(|step| step.kind == Kind::Judge)
            && judge + 1 < steps.len()
        {
            return Err(format!("`{}` comes after the judge, which is the last step", steps[judge + 1].name));
        }
        if !steps.iter().any(|step| step.kind == Kind::Work) {
            return Err("no step changes files: a story needs one of kind `work`".into());
        }
        let late =
            steps.iter().skip_while(|step| step.kind == Kind::Work).find(|step| step.kind == Kind::Work);
        if let Some(late) = late {
            return Err(format!("`{}` changes files after a review: reviews come last", late.name));
        }
        let at_end = match (file.at_end.as_deref(), file.into, file.remote) {
            (None | Some("leave"), None, None) => AtEnd::Leave,
            (Some("merge"), Some(into), None) => AtEnd::Merge(into),
            (Some("merge"), None, None) => return Err("`at_end = \"merge\"` needs `into`, the branch".into()),
            (Some("push"), None, remote) => AtEnd::Push(remote.unwrap_or_else(|| "origin".into())),
            (Some("leave" | "merge" | "push") | None, ..) => {
                return Err(
                    "`into` belongs to `at_end = \"merge\"`, and `remote` to `at_end = \"push\"`".into()
                );
            }
            (Some(other), ..) => {
                return Err(format!("`at_end` is `{other}`: it can be leave, merge or push"));
            }
        };
        let span = |name: &str, value: Option<String>, default: Millis| {
            value.map_or(Ok(default), |text| duration(&text).map_err(|e| format!("`{name}`: {e}")))
        };
        let lease = span("lease", file.lease, loops::TTL)?;
        if !(Millis::seconds(1)..=Millis::days(30)).contains(&lease) {
            return Err(format!("`lease` is {lease}: it can be from 1 second to 30 days"));
        }
        Ok(Self {
            steps,
            checks: file.checks,
            lease,
            base: file.base,
            at_end,
            setup: file.setup,
            copy: file.copy,
        })
    }
}

fn step(name: String, value: toml::Value) -> Result<Step, String> {
    let table = match value {
        toml::Value::Table(table) => {
            table.try_into::<StepTable>().map_err(|e| format!("`step.{name}`: {}", e.message().trim()))?
        }
        run => StepTable { run, kind: None, timeout: None, retries: None, json: None },
    };
    let tools = match table.run {
        toml::Value::String(tool) => Some(vec![tool]),
        toml::Value::Array(tools) => tools.iter().map(|tool| tool.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let tools = tools.unwrap_or_default();
    if tools.is_empty() || tools.iter().any(|tool| tool.trim().is_empty()) {
        return Err(format!("`step.{name}` is not a command line or a list of command lines"));
    }
    let kind = table.kind.unwrap_or(match name.as_str() {
        "review" => Kind::Review,
        "judge" => Kind::Judge,
        _ => Kind::Work,
    });
    let timeout = table.timeout.as_deref().map(duration).transpose();
    let timeout = timeout.map_err(|e| format!("`step.{name}.timeout`: {e}"))?.unwrap_or(Millis::minutes(30));
    if timeout.0 == 0 {
        return Err(format!("`step.{name}.timeout` is zero"));
    }
    Ok(Step {
        timeout,
        retries: table.retries.unwrap_or(0),
        json: table.json.unwrap_or(kind == Kind::Judge),
        name,
        kind,
        tools,
    })
}

/// The text of a file that belongs to the project.
fn project_text(path: &Path) -> Result<String> {
    if !path.is_file() {
        let message = format!("there is no {FILE} in {}", shown(path.parent().unwrap_or(path)));
        return Err(Error::new(Code::NotFound, message)
            .hint("--config names another file; fence loop run --show-config prints an example"));
    }
    match trust::read(path)? {
        ProjectFile::Trusted(text) => Ok(text),
        ProjectFile::Untrusted(untrusted) => {
            let why = if untrusted.changed { "changed since you trusted it" } else { "is not trusted" };
            let message = format!("{} {why}: its commands are not run", shown(&untrusted.path));
            Err(Error::new(Code::Invalid, message)
                .with("path", untrusted.path.display().to_string())
                .hint(format!("read it, then: fence trust {}", shown(&untrusted.path))))
        }
    }
}

fn shown(path: &Path) -> String {
    crate::output::text::line(&PathBuf::from(path).display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_a_config() {
        let config = Config::parse(EXAMPLE).unwrap();
        let told: Vec<_> = config.steps.iter().map(|step| (step.name.as_str(), step.kind)).collect();
        use Kind::{Judge, Review, Work};
        assert_eq!(
            told,
            [
                ("plan", Work),
                ("write-tests", Work),
                ("implement", Work),
                ("review", Review),
                ("judge", Judge)
            ]
        );
        let implement = &config.steps[2];
        assert_eq!(implement.tools.len(), 2);
        assert_eq!(implement.tool(7), implement.tools[1], "the last one for the rest");
        assert_eq!((config.lease, config.at_end), (Millis::minutes(30), AtEnd::Leave));
    }

    #[test]
    fn mistakes_are_named() {
        let with = |more: &str| format!("steps = [\"implement\"]\n{more}\n[step]\nimplement = \"x\"");
        Config::parse(&with("")).unwrap();
        assert_eq!(
            Config::parse(&with("at_end = \"merge\"\ninto = \"main\"")).unwrap().at_end,
            AtEnd::Merge("main".into())
        );
        for (text, says) in [
            (with("stepz = 1"), "line 2: unknown field `stepz`"),
            ("steps = []".into(), "names no step"),
            ("steps = [\"a\"]".into(), "`step.a` has no command"),
            (with("") + "\nother = \"y\"", "`step.other` is not in `steps`"),
            ("steps = [\"a\", \"a\"]\nstep.a = \"x\"".into(), "twice"),
            ("steps = [\"checks\"]\nstep.checks = \"x\"".into(), "cannot be the name"),
            ("steps = [\"a b\"]\nstep.\"a b\" = \"x\"".into(), "cannot be the name"),
            ("steps = [\"a\"]\nstep.a = 3".into(), "not a command line"),
            ("steps = [\"a\"]\nstep.a = []".into(), "not a command line"),
            ("steps = [\"a\"]\nstep.a = [\"x\", 3]".into(), "not a command line"),
            (with("lease = \"0s\""), "from 1 second"),
            ("steps = [\"a\"]\nstep.a = { run = \"x\", retry = 2 }".into(), "unknown field `retry`"),
            (
                "steps = [\"a\"]\nstep.a = { run = \"x\", timeout = \"soon\" }".into(),
                "`step.a.timeout`: not a duration",
            ),
            (
                "steps = [\"judge\", \"a\"]\nstep.a = \"x\"\nstep.judge = \"x\"".into(),
                "comes after the judge",
            ),
            (
                "steps = [\"a\", \"review\", \"b\"]\nstep.a = \"x\"\nstep.b = \"x\"\nstep.review = \"x\""
                    .into(),
                "reviews come last",
            ),
            ("steps = [\"judge\"]\nstep.judge = \"x\"".into(), "no step changes files"),
            (with("at_end = \"merge\""), "needs `into`"),
            (with("at_end = \"burn\""), "leave, merge or push"),
            (with("into = \"main\""), "belongs to"),
            ("steps = [".into(), "line 1"),
        ] {
            let problem = Config::parse(&text).expect_err(says);
            assert!(problem.contains(says), "{text}\n{problem}");
        }
    }
}
