//! A recipe: what a client needs, and in which files. Recipes are data, so that a user adds one without code.

use super::switches::Switch;
use crate::{
    commands::work::profile::fill,
    edits::{Block, Json, Ours, Toml},
    environment::config_home,
    trust::small_text,
};
use fencepost::{Code, Error, Result};
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    rc::Rc,
};

const BUILT_IN: [(&str, &str); 3] = [
    ("claude", include_str!("recipes/claude.toml")),
    ("codex", include_str!("recipes/codex.toml")),
    ("agents-md", include_str!("recipes/agents-md.toml")),
];

/// The keys are explained in `recipes/claude.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    about: String,
    mcp: Option<Always>,
    #[serde(default)]
    directories: BTreeMap<String, String>,
    #[serde(default)]
    part: Vec<PartText>,
    #[serde(default)]
    hooks_off: Vec<Switch>,
    #[serde(default)]
    advice: Vec<Advice>,
}

/// Parts for MCP are wanted with and without `--mcp`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Always {
    Always,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartText {
    project: Option<String>,
    user: Option<String>,
    format: Format,
    when: Option<When>,
    #[serde(default)]
    marks: Vec<String>,
    #[serde(default)]
    named: Vec<String>,
    #[serde(default)]
    comments: bool,
    content: String,
}

impl PartText {
    fn file(&self, scope: Scope) -> Option<&str> {
        match scope {
            Scope::Project => self.project.as_deref(),
            Scope::User => self.user.as_deref(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Format {
    Json,
    Toml,
    Markdown,
    File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum When {
    Mcp,
    NoMcp,
}

/// The files of a project, or those of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    Project,
    User,
}

impl Scope {
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Project => "project",
            Scope::User => "user",
        }
    }
}

/// Something that is left for a person.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advice {
    when: Option<When>,
    scope: Option<Scope>,
    text: String,
}

/// What the user chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    pub mcp: bool,
    pub strict: bool,
    pub board: Option<String>,
}

/// The values of the variables. One without a value leaves out the parts that use it.
pub type Variables = Vec<(&'static str, Option<String>)>;

#[derive(Debug)]
pub struct Recipe {
    pub name: String,
    pub about: String,
    /// The user's own file.
    pub file: Option<PathBuf>,
    text: Text,
}

/// Something to put into one file.
#[derive(Debug)]
pub struct Part {
    /// As the recipe names it: relative to the project, or with `~`.
    pub file: String,
    pub wanted: bool,
    /// The client ignores the file, without a word, if it is not plain JSON.
    pub must_be_plain: bool,
    pub content: Content,
}

#[derive(Debug)]
pub enum Content {
    Json(Json),
    Toml(Toml),
    Block(Block),
    /// A whole file, and texts by which an older version of it is recognised.
    File(String, Vec<String>),
}

impl Recipe {
    /// The names of all recipes.
    pub fn names() -> Vec<String> {
        let mut names: Vec<String> = BUILT_IN.iter().map(|(name, _)| (*name).to_owned()).collect();
        let own = directory().and_then(|directory| std::fs::read_dir(directory).ok());
        let own = own
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".toml")?.to_owned()));
        let own: BTreeSet<String> = own.filter(|name| !names.contains(name)).collect();
        names.extend(own);
        names
    }

    /// The recipe of this name: the user's own, else a built-in one.
    pub fn load(name: &str) -> Result<Self> {
        let own = directory().map(|directory| directory.join(format!("{name}.toml")));
        let own = own.filter(|path| !name.contains('/') && path.exists());
        let text = match &own {
            Some(path) => small_text(path).map_err(|e| {
                Error::new(Code::Invalid, format!("recipe `{}` cannot be read: {e}", path.display()))
            })?,
            None => BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned()).ok_or_else(
                || {
                    Error::new(Code::Invalid, format!("there is no recipe `{name}`")).hint(format!(
                        "the recipes are {}; one of your own is a file NAME.toml in the directory fence/recipes of your settings",
                        Self::names().join(", ")
                    ))
                },
            )?,
        };
        let text: Text = toml::from_str(&text).map_err(|e| wrong(name, e.message().trim_end()))?;
        Ok(Self { name: name.to_owned(), about: text.about.clone(), file: own, text })
    }

    /// A recipe of this program, whatever the person who runs the tests has.
    #[cfg(test)]
    pub fn built_in(name: &str) -> Self {
        let (name, text) = BUILT_IN.iter().find(|(known, _)| *known == name).expect("a recipe");
        let text: Text = toml::from_str(text).expect("right");
        Self { name: (*name).into(), about: text.about.clone(), file: None, text }
    }

    /// Does the recipe have files there?
    pub fn has_files(&self, scope: Scope) -> bool {
        self.text.part.iter().any(|part| part.file(scope).is_some())
    }

    /// Are the parts for MCP wanted?
    pub fn has_mcp(&self, options: &Options) -> bool {
        options.mcp || self.text.mcp.is_some()
    }

    pub fn advice(&self, scope: Scope, options: &Options) -> Vec<String> {
        let fits = |advice: &&Advice| {
            self.is_wanted(advice.when, options) && advice.scope.is_none_or(|only| only == scope)
        };
        self.text.advice.iter().filter(fits).map(|advice| advice.text.clone()).collect()
    }

    /// The variable that moves a directory of this recipe elsewhere, with the directory.
    pub fn directories(&self) -> impl Iterator<Item = (&str, &str)> {
        self.text.directories.iter().map(|(directory, variable)| (directory.as_str(), variable.as_str()))
    }

    /// The settings of the client that turn its hooks off.
    pub fn switches(&self) -> &[Switch] {
        &self.text.hooks_off
    }

    fn is_wanted(&self, when: Option<When>, options: &Options) -> bool {
        when.is_none_or(|when| (when == When::Mcp) == self.has_mcp(options))
    }

    /// The parts for these files, with the variables filled in. `ours`: recognises hooks of ours that are in the files.
    pub fn parts(
        &self,
        scope: Scope,
        options: &Options,
        variables: &Variables,
        ours: &Rc<dyn Ours>,
    ) -> Result<Vec<Part>> {
        if !self.has_files(scope) {
            let message = format!("recipe `{}` has nothing for --{}", self.name, scope.as_str());
            return Err(Error::new(Code::Invalid, message)
                .hint("--project and --user choose the files that are written"));
        }
        let mut parts = Vec::new();
        for part in &self.text.part {
            let Some(file) = part.file(scope) else { continue };
            let absent = |name: &str| part.content.contains(&format!("{{{name}}}"));
            if variables.iter().any(|(name, value)| value.is_none() && absent(name)) {
                continue;
            }
            if scope == Scope::Project
                && (file.starts_with(['/', '~']) || file.split('/').any(|word| word == ".."))
            {
                return Err(wrong(&self.name, &format!("`{file}` is not a path below the project")));
            }
            let values: Vec<_> =
                variables.iter().filter_map(|(name, value)| Some((*name, value.clone()?))).collect();
            let content = self.content(part, &values, ours)?;
            let must_be_plain = part.format == Format::Json && !part.comments;
            let wanted = self.is_wanted(part.when, options);
            parts.push(Part { file: file.to_owned(), wanted, must_be_plain, content });
        }
        Ok(parts)
    }

    fn content(
        &self,
        part: &PartText,
        values: &[(&'static str, String)],
        ours: &Rc<dyn Ours>,
    ) -> Result<Content> {
        if part.format != Format::File && !part.marks.is_empty() {
            return Err(wrong(&self.name, "`marks` is for the format `file` only"));
        }
        let filled = |text: &str| {
            fill(text, "{", "}", values).map_err(|e| {
                let error = wrong(&self.name, e.message());
                e.hint_text().map(str::to_owned).into_iter().fold(error, |error, hint| error.hint(hint))
            })
        };
        let named: Vec<Vec<String>> =
            part.named.iter().map(|name| name.split('.').map(str::to_owned).collect()).collect();
        Ok(match part.format {
            Format::Markdown => Content::Block(Block {
                lines: filled(&part.content)?.trim().to_owned(),
                note: "(fence setup writes these lines; with --remove it takes them away)".into(),
            }),
            Format::File => Content::File(filled(&part.content)?, part.marks.clone()),
            Format::Json => {
                let value: Value = serde_json::from_str(&part.content).map_err(|e| {
                    wrong(&self.name, &format!("the content for a JSON file is not JSON: {e}"))
                })?;
                let Value::Object(entries) = filled_json(value, &filled)? else {
                    return Err(wrong(&self.name, "the content for a JSON file is not an object"));
                };
                Content::Json(Json { entries, ours: ours.clone(), named })
            }
            Format::Toml => {
                let table: toml::Table = part.content.parse().map_err(|e: toml::de::Error| {
                    wrong(
                        &self.name,
                        &format!("the content for a TOML file is not TOML: {}", e.message().trim_end()),
                    )
                })?;
                let mut content = Toml::default();
                self.toml_entries(table, &named, &mut Vec::new(), &filled, &mut content)?;
                Content::Toml(content)
            }
        })
    }

    fn toml_entries(
        &self,
        table: toml::Table,
        named: &[Vec<String>],
        path: &mut Vec<String>,
        filled: &impl Fn(&str) -> Result<String>,
        content: &mut Toml,
    ) -> Result<()> {
        for (key, value) in table {
            path.push(key);
            match value {
                toml::Value::Table(table) if named.contains(path) => {
                    let table = table.into_iter().map(|(key, value)| Ok((key, filled_toml(value, filled)?)));
                    content.tables.push((path.clone(), table.collect::<Result<_>>()?));
                }
                toml::Value::Table(table) => self.toml_entries(table, named, path, filled, content)?,
                toml::Value::Array(items) if path.len() > 1 && items.iter().all(toml::Value::is_str) => {
                    let items = items.iter().filter_map(toml::Value::as_str).map(filled);
                    content.lists.push((path.clone(), items.collect::<Result<_>>()?));
                }
                _ => {
                    let message =
                        format!("`{}` is neither in a table of `named` nor a list of texts", path.join("."));
                    return Err(wrong(&self.name, &message));
                }
            }
            path.pop();
        }
        Ok(())
    }
}

fn filled_json(value: Value, filled: &impl Fn(&str) -> Result<String>) -> Result<Value> {
    Ok(match value {
        Value::String(text) => Value::String(filled(&text)?),
        Value::Array(items) => {
            Value::Array(items.into_iter().map(|item| filled_json(item, filled)).collect::<Result<_>>()?)
        }
        Value::Object(members) => {
            let members = members.into_iter().map(|(key, value)| Ok((key, filled_json(value, filled)?)));
            Value::Object(members.collect::<Result<_>>()?)
        }
        other => other,
    })
}

fn filled_toml(value: toml::Value, filled: &impl Fn(&str) -> Result<String>) -> Result<toml::Value> {
    Ok(match value {
        toml::Value::String(text) => toml::Value::String(filled(&text)?),
        toml::Value::Array(items) => toml::Value::Array(
            items.into_iter().map(|item| filled_toml(item, filled)).collect::<Result<_>>()?,
        ),
        other => other,
    })
}

/// The directory of the user's own recipes.
fn directory() -> Option<PathBuf> {
    config_home().map(|home| home.join("fence/recipes"))
}

fn wrong(name: &str, why: &str) -> Error {
    Error::new(Code::Invalid, format!("recipe `{name}` is wrong: {why}"))
        .hint("the built-in recipes show the form: crates/fencepost-cli/src/commands/setup/recipes in the source of fence")
}

impl Content {
    /// The text of the file with this part, current.
    pub fn apply(&self, text: Option<&str>) -> Result<String, String> {
        match self {
            Content::Json(json) => json.apply(text),
            Content::Toml(toml) => toml.apply(text),
            Content::Block(block) => block.apply(text),
            Content::File(content, marks) => match text {
                Some(text) if text != content && !marks.iter().any(|mark| text.contains(mark)) => {
                    Err("the file is there, and fence did not write it".into())
                }
                _ => Ok(content.clone()),
            },
        }
    }

    /// The text of the file without this part. `None`: there is no file any more.
    pub fn remove(&self, text: &str) -> Result<Option<String>, String> {
        match self {
            Content::Json(json) => json.remove(text),
            Content::Toml(toml) => toml.remove(text),
            Content::Block(block) => block.remove(text),
            Content::File(content, marks) => {
                let is_ours = text == content || marks.iter().any(|mark| text.contains(mark));
                Ok((!is_ours).then(|| text.to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            hook_line,
            own_hook::{Installation, OwnHook},
        },
        *,
    };
    use std::path::Path;

    fn recipe(text: &str) -> Recipe {
        let text: Text = toml::from_str(text).unwrap_or_else(|e| panic!("{e}"));
        Recipe { name: "x".into(), about: text.about.clone(), file: None, text }
    }

    fn everything() -> Rc<dyn Ours> {
        Rc::new(Installation::here(Scope::User, Path::new("/")))
    }

    #[test]
    fn the_built_in_recipes_are_right() {
        let names = [
            "guard",
            "quiet",
            "flags",
            "fence",
            "program",
            "skill",
            "on_board",
            "here",
            "fleet_directory",
            "outside_directory",
        ];
        let value = |name: &str| match name {
            "guard" => hook_line::guard("/x/fence", true),
            "quiet" => hook_line::quiet("'/x y/fence'"),
            "flags" => " --mcp --strict".into(),
            "on_board" => " --board auth".into(),
            name => format!("<{name}>"),
        };
        let variables: Variables = names.iter().map(|name| (*name, Some(value(name)))).collect();
        for (name, text) in BUILT_IN {
            for mcp in [false, true] {
                let options = Options { mcp, ..Options::default() };
                let parts = recipe(text).parts(Scope::Project, &options, &variables, &everything());
                let parts = parts.unwrap_or_else(|e| panic!("{name}: {}", e.message()));
                for part in &parts {
                    let made = part.content.apply(None).unwrap_or_else(|e| panic!("{name}: {e}"));
                    assert_eq!(part.content.remove(&made), Ok(None), "{name}: {}", part.file);
                    let Content::Json(json) = &part.content else { continue };
                    for line in json.texts(&made).expect("JSON").iter().filter(|text| text.contains("hook")) {
                        assert!(
                            OwnHook::parse(line).is_some(),
                            "{name}: `fence setup` must know it again: {line}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_wrong_recipe_is_explained() {
        let part = |rest: &str| format!("about = 'x'\n[[part]]\nproject = 'f'\n{rest}");
        for (text, why) in [
            (part("format = 'json'\ncontent = '['"), "the content for a JSON file is not JSON: "),
            (part("format = 'json'\ncontent = '[]'"), "the content for a JSON file is not an object"),
            (part("format = 'json'\ncontent = '{\"a\": \"{fense}\"}'"), "there is no variable `fense`"),
            (part("format = 'toml'\ncontent = 'a = 1'"), "`a` is neither in a table"),
            (
                part("format = 'json'\nmarks = ['fence']\ncontent = '{}'"),
                "`marks` is for the format `file` only",
            ),
            (
                part("format = 'file'\ncontent = 'x'").replace("'f'", "'../f'"),
                "`../f` is not a path below the project",
            ),
        ] {
            let variables = vec![("fence", Some("f".into()))];
            let wrong = recipe(&text).parts(Scope::Project, &Options::default(), &variables, &everything());
            let wrong = wrong.expect_err(&text);
            assert!(
                wrong.message().starts_with(&format!("recipe `x` is wrong: {why}")),
                "{}",
                wrong.message()
            );
        }
        let file = recipe(&part("format = 'file'\ncontent = 'x'"));
        let none = file.parts(Scope::User, &Options::default(), &vec![], &everything());
        assert_eq!(none.expect_err("nothing").message(), "recipe `x` has nothing for --user");
        let unknown = toml::from_str::<Text>("about = 'x'\ncolour = 1").unwrap_err();
        assert!(unknown.message().contains("unknown field `colour`"), "{unknown}");
    }
}
