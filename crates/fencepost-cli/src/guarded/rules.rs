//! The guarded list, and whether a command's words match one of its rules.

use super::expand::{Field, UNKNOWN};

/// The list without a setting. Each entry publishes something, or changes a system that others use, and can be named
/// exactly by its subcommand. Left out: programs that deploy without a subcommand, verbs that also have an everyday
/// harmless use (`aws s3 cp`, `systemctl restart`), and everything that only changes this checkout.
pub const DEFAULT: &[&str] = &[
    "git push|send-pack",
    "git subtree|lfs push",
    "jj git push",
    "gh pr create|merge",
    "gh release create|upload|edit|delete",
    "glab mr create|merge",
    "npm|pnpm|yarn|bun|lerna|changeset publish",
    "npm unpublish",
    "yarn npm publish",
    "cargo publish|yank",
    "twine upload",
    "uv|poetry|flit|hatch publish",
    "gem push|yank",
    "mix hex.publish",
    "nuget push",
    "dotnet nuget push",
    "docker|podman push",
    "docker image|compose push",
    "docker buildx build --push",
    "kubectl apply|create|delete|edit|patch|replace|scale|set",
    "kubectl rollout restart|undo|pause|resume",
    "helm install|upgrade|uninstall|rollback|push",
    "terraform|tofu|terragrunt apply|destroy",
    "pulumi up|destroy",
    "cdk|sam|serverless|sls deploy",
    "aws cloudformation deploy",
    "gcloud app|run|functions deploy",
    "fly|flyctl|vercel|netlify|firebase|wrangler deploy",
    "vercel --prod",
    "wrangler publish",
];

/// Options before the subcommand: those that take a separate value, and flags. Options in neither list are read both
/// ways. For yarn, `workspace NAME` stands where an option would.
const OPTIONS: &[(&str, &[&str], &[&str])] = &[
    (
        "git",
        &[
            "-C",
            "-c",
            "--git-dir",
            "--work-tree",
            "--namespace",
            "--config-env",
            "--super-prefix",
            "--attr-source",
        ],
        &[
            "-p",
            "-P",
            "--paginate",
            "--no-pager",
            "--bare",
            "--no-replace-objects",
            "--literal-pathspecs",
            "--glob-pathspecs",
            "--noglob-pathspecs",
            "--icase-pathspecs",
            "--no-optional-locks",
            "--no-lazy-fetch",
            "--no-advice",
            "--version",
            "-v",
            "--help",
            "-h",
            "--html-path",
            "--man-path",
            "--info-path",
            "--exec-path",
        ],
    ),
    ("gh", &["-R", "--repo", "--hostname"], &["--help"]),
    (
        "kubectl",
        &[
            "-n",
            "--namespace",
            "--context",
            "--cluster",
            "--user",
            "--kubeconfig",
            "-s",
            "--server",
            "--token",
            "--as",
            "--as-group",
            "--request-timeout",
            "-v",
            "--cache-dir",
        ],
        &["--insecure-skip-tls-verify", "--help", "-h"],
    ),
    ("helm", &["-n", "--namespace", "--kube-context", "--kubeconfig"], &["--debug", "--help", "-h"]),
    (
        "docker",
        &["--config", "-c", "--context", "-H", "--host", "-l", "--log-level"],
        &["-D", "--debug", "--tls"],
    ),
    ("terraform", &[], &["-help", "-version", "--help", "--version"]),
    (
        "npm",
        &[
            "--prefix",
            "-C",
            "--registry",
            "--userconfig",
            "--globalconfig",
            "--cache",
            "--loglevel",
            "-w",
            "--workspace",
        ],
        &[
            "--silent",
            "-s",
            "--quiet",
            "-q",
            "--verbose",
            "-d",
            "-dd",
            "--json",
            "--yes",
            "-y",
            "-g",
            "--global",
            "-f",
            "--force",
            "-ws",
            "--workspaces",
            "--if-present",
            "--offline",
        ],
    ),
    (
        "pnpm",
        &["-C", "--dir", "--filter", "-F"],
        &["-r", "--recursive", "-w", "--workspace-root", "--silent", "-s"],
    ),
    ("yarn", &["--cwd", "workspace"], &["--silent", "-s", "--json", "--verbose"]),
    (
        "cargo",
        &["--config", "--color", "-Z", "-C"],
        &["-q", "--quiet", "-v", "-vv", "--verbose", "--locked", "--offline", "--frozen"],
    ),
];

#[derive(Debug, Clone)]
struct Rule {
    text: String,
    /// For each place, the alternatives. The first place is the program.
    words: Vec<Vec<String>>,
    /// Options that must stand anywhere after the program.
    options: Vec<String>,
}

/// The guarded list.
#[derive(Debug, Clone)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Each text is a program and its subcommands, with `|` between alternatives: `kubectl apply|delete`. A word that
    /// starts with `-` is an option that must be given.
    pub fn parse(texts: &[String]) -> Result<Rules, String> {
        texts.iter().map(|text| Rule::parse(text)).collect::<Result<_, _>>().map(Rules)
    }

    /// The last word of each rule: `push`, `merge`, `publish`. For a search in text that cannot be parsed.
    pub fn words(&self) -> Vec<&str> {
        let mut words: Vec<_> = self.0.iter().flat_map(Rule::coarse).collect();
        words.sort_unstable();
        words.dedup();
        words
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The rule of which a coarse word stands in the text, quotes and escapes aside.
    pub(super) fn coarse(&self, text: &str) -> Option<&str> {
        let text: String = text.chars().filter(|c| !matches!(c, '\'' | '"' | '\\')).collect();
        let words = tokens(&text).collect::<std::collections::HashSet<_>>();
        self.0
            .iter()
            .find(|rule| rule.coarse().any(|word| words.contains(word)))
            .map(|rule| rule.text.as_str())
    }

    /// The rule whose words stand in the text in this order.
    pub(super) fn mentioned(&self, text: &str) -> Option<&str> {
        let rules = self.0.iter().filter(|rule| {
            let mut tokens = tokens(text);
            rule.words.iter().all(|words| tokens.any(|token| words.iter().any(|word| word == token)))
        });
        rules.map(|rule| rule.text.as_str()).next()
    }

    /// The rule that the command matches. `spend` is told the steps this takes; false from it ends the search.
    pub(super) fn matching(&self, fields: &[Field], spend: &dyn Fn(usize) -> bool) -> Option<&str> {
        self.0.iter().find(|rule| rule.matches(fields, spend)).map(|rule| rule.text.as_str())
    }
}

impl Default for Rules {
    fn default() -> Self {
        Rules(DEFAULT.iter().map(|text| Rule::parse(text).expect("a test parses them")).collect())
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Rule, String> {
        let (mut words, mut options) = (Vec::new(), Vec::new());
        for word in text.split_whitespace() {
            let alternatives: Vec<_> = word.split('|').map(str::to_owned).collect();
            if alternatives.iter().any(String::is_empty) {
                return Err(format!("guarded command `{text}`: an alternative of `{word}` is empty"));
            }
            if let Some(bad) = word.chars().find(|c| "'\"\\$`;&<>(){}*?[]#~!/".contains(*c) || c.is_control())
            {
                return Err(format!(
                    "guarded command `{text}`: `{bad}` is not allowed; write a program and its subcommands, such as `git push` \
                     or `kubectl apply|delete`"
                ));
            }
            match word.starts_with('-') {
                false => words.push(alternatives),
                true if words.is_empty() => {
                    return Err(format!(
                        "guarded command `{text}` must start with a program, not with an option"
                    ));
                }
                true => options.extend(alternatives),
            }
        }
        if words.is_empty() {
            return Err(
                "a guarded command is empty; write a program and its subcommands, such as `git push`"
                    .to_owned(),
            );
        }
        Ok(Rule { text: text.split_whitespace().collect::<Vec<_>>().join(" "), words, options })
    }

    fn coarse(&self) -> impl Iterator<Item = &str> {
        self.words.last().into_iter().flatten().map(String::as_str)
    }

    fn matches(&self, fields: &[Field], spend: &dyn Fn(usize) -> bool) -> bool {
        fields[0].texts.iter().any(|text| self.matches_program(&base_name(text), fields, spend))
    }

    fn matches_program(&self, program: &str, fields: &[Field], spend: &dyn Fn(usize) -> bool) -> bool {
        let known = program.chars().any(|c| c != UNKNOWN);
        let mut todo = Vec::new();
        if self.words[0].iter().any(|word| like(program, word)) {
            todo.push((1, 1, known));
        }
        // `git-push` in git's own directory is `git push`.
        if self.words.len() > 1 && self.words[1].iter().any(|word| program.strip_prefix("git-") == Some(word))
        {
            todo.extend(self.words[0].iter().any(|word| word == "git").then_some((1, 2, true)));
        }
        let named = OPTIONS.iter().find(|(name, ..)| *name == program);
        let (values, flags) = named.map_or((&[][..], &[][..]), |(_, values, flags)| (*values, *flags));
        let mut seen = std::collections::HashSet::new();
        while let Some((at, place, known)) = todo.pop() {
            if !seen.insert((at, place, known)) || !spend(1) {
                continue;
            }
            let Some(alternatives) = self.words.get(place) else {
                if known && self.has_options(fields) && !only_asks_for_help(&fields[at.min(fields.len())..]) {
                    return true;
                }
                continue;
            };
            let Some(field) = fields.get(at) else { continue };
            let text = field.first();
            if values.contains(&text) {
                todo.push((at + 2, place, known));
            } else if is_option(text) || (program == "cargo" && text.starts_with('+')) {
                todo.push((at + 1, place, known));
                if text != "--" && !text.contains('=') && !text.starts_with('+') && !flags.contains(&text) {
                    todo.push((at + 2, place, known));
                }
            } else if field.is_unknown() {
                // It may be several words: the one of this place, and more.
                todo.push((at + 1, place + 1, known));
                todo.push((at, place + 1, known));
            } else if field.texts.iter().any(|text| alternatives.iter().any(|word| like(text, word))) {
                todo.push((at + 1, place + 1, true));
            }
        }
        false
    }

    fn has_options(&self, fields: &[Field]) -> bool {
        self.options.is_empty()
            || fields[1..].iter().flat_map(|field| &field.texts).any(|text| {
                self.options.iter().any(|option| like(text.split('=').next().unwrap_or(text), option))
            })
    }
}

fn only_asks_for_help(rest: &[Field]) -> bool {
    matches!(rest, [only] if matches!(only.first(), "--help" | "-h" | "-help"))
}

pub(super) fn is_option(text: &str) -> bool {
    text.len() > 1 && text.starts_with('-')
}

/// The program's name without its directory, in lower case and without the endings of Windows: file systems that
/// ignore case run `GIT` as git.
pub(super) fn base_name(text: &str) -> String {
    let name = text.rsplit(['/', '\\']).next().unwrap_or(text).to_ascii_lowercase();
    let short = [".exe", ".cmd", ".bat"].iter().find_map(|ending| name.strip_suffix(ending));
    short.map(str::to_owned).unwrap_or(name)
}

/// Whether a text with unknown parts may be this word.
fn like(text: &str, word: &str) -> bool {
    let mut parts = text.split(UNKNOWN);
    let Some(mut rest) = parts.next().and_then(|first| word.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':')))
        .filter(|token| !token.is_empty())
}
