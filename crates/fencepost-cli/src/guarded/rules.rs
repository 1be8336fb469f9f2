//! The guarded list.

use super::{Found, shell::Command, words};

/// The list without a setting: commands that publish something or change a system that others use. Left out: programs that
/// deploy without a subcommand, and verbs with an everyday harmless use (`aws s3 cp`, `systemctl restart`).
pub const DEFAULT: &[&str] = &[
    "git push|send-pack",
    "gh pr create|new|merge",
    "gh release create|new|upload|edit|delete|delete-asset",
    "gh repo create|new|delete|archive|rename",
    "glab mr create|new|merge|accept",
    "npm|pnpm|yarn|bun|lerna|changeset|uv|poetry|flit|hatch|wrangler publish",
    "npm pub|unpublish|deprecate",
    "cargo publish|yank",
    "twine upload",
    "mix hex.publish",
    "gem|nuget push|yank",
    "docker|podman|buildah|nerdctl push|--push",
    "kubectl|oc apply|create|delete|edit|patch|replace|scale|set|drain|cordon|taint",
    "kubectl|oc rollout restart|undo|pause|resume",
    "helm install|upgrade|uninstall|delete|rollback|push",
    "terraform|tofu|terragrunt apply|destroy",
    "pulumi up|update|down|destroy",
    "cdk|sam|serverless|sls deploy|destroy|remove",
    "aws cloudformation deploy|create-stack|update-stack|delete-stack",
    "gcloud app|run|functions deploy",
    "fly|flyctl|vercel|netlify|firebase|wrangler deploy|--prod",
];

#[derive(Debug, Clone)]
struct Rule {
    text: String,
    /// For each place, the alternatives, in lower case. The first place is the program.
    words: Vec<Vec<String>>,
}

#[derive(Debug, Clone)]
pub struct Rules(Vec<Rule>);

impl Rules {
    /// Each text is a program, its subcommands and options, with `|` between alternatives: `kubectl apply|delete`.
    pub fn parse(texts: &[String]) -> Result<Rules, String> {
        texts.iter().map(|text| Rule::parse(text)).collect::<Result<_, _>>().map(Rules)
    }

    /// The first rule whose words stand in the text, harmless or not.
    pub fn named_in(&self, text: &str) -> Option<Found> {
        words::readings(text).iter().find_map(|line| self.0.iter().find_map(|rule| rule.found_in(line)))
    }

    /// Does a rule begin with this program, and with this subcommand or one of the command's options?
    pub(super) fn guard(&self, command: &Command, subcommand: &str) -> bool {
        let options = command.own().iter().map(|word| &*word.text).filter(|word| word.starts_with('-'));
        let seconds: Vec<String> = options.chain([subcommand]).map(str::to_lowercase).collect();
        self.0.iter().any(|rule| {
            rule.words[0].contains(&command.word(0).to_lowercase())
                && rule.words.get(1).is_none_or(|second| second.iter().any(|word| seconds.contains(word)))
        })
    }
}

impl Default for Rules {
    fn default() -> Self {
        Rules(DEFAULT.iter().map(|text| Rule::parse(text).expect("a test parses them")).collect())
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Rule, String> {
        let wrong =
            |why: &str| Err(format!("guarded command `{text}` {why}; write it like `oc apply|delete`"));
        let words = text.split_whitespace().map(|word| word.split('|').map(str::to_lowercase).collect());
        let words: Vec<Vec<String>> = words.collect();
        let is_bad = |c: &char| "'\"\\$`;&<>(){}*?[]#~!,^%".contains(*c) || c.is_control();
        let slash = words.first().is_some_and(|first| first.concat().contains('/')).then_some('/');
        if let Some(bad) = text.chars().find(is_bad).or(slash) {
            return wrong(&format!("has a `{bad}`"));
        }
        match words.first() {
            None => wrong("is empty"),
            Some(first) if first[0].starts_with('-') => wrong("starts with an option, not with a program"),
            Some(_) if words.iter().flatten().any(String::is_empty) => wrong("has an empty alternative"),
            Some(_) => Ok(Rule { text: text.split_whitespace().collect::<Vec<_>>().join(" "), words }),
        }
    }

    /// The words in their order, anywhere. The line is searched twice, so that `echo push | xargs git` is found as well.
    fn found_in(&self, line: &[words::Word]) -> Option<Found> {
        let mut twice = line.iter().chain(line);
        let mut found = Vec::new();
        for (place, words) in self.words.iter().enumerate() {
            let word = twice.find(|word| words.contains(&word.text) && (place == 0 || !word.is_program))?;
            found.push(word.text.as_str());
        }
        Some(Found { rule: self.text.clone(), command: found.join(" ") })
    }
}
