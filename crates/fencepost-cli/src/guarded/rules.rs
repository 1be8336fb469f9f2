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
    pub fn parse(texts: &[impl AsRef<str>]) -> Result<Rules, String> {
        texts.iter().map(|text| Rule::parse(text.as_ref())).collect::<Result<_, _>>().map(Rules)
    }

    /// The first rule whose words stand in the text, harmless or not.
    pub fn named_in(&self, text: &str) -> Option<Found> {
        words::readings(text).iter().find_map(|line| self.0.iter().find_map(|rule| rule.found_in(line)))
    }

    /// Does a rule begin with this program, and with this subcommand or one of the command's options?
    pub(super) fn guard(&self, command: &Command, subcommand: &str) -> bool {
        let words = command.own().iter().skip(1).map(|word| word.text.to_lowercase());
        let seconds: Vec<String> = words.filter(|word| word.starts_with('-') || word == subcommand).collect();
        let is_second = |second: &Vec<String>| seconds.iter().any(|word| second.contains(word));
        let program = command.word(0).to_lowercase();
        self.0.iter().any(|rule| rule.words[0].contains(&program) && rule.words.get(1).is_none_or(is_second))
    }
}

impl Default for Rules {
    fn default() -> Self {
        Rules::parse(DEFAULT).expect("a test parses them")
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Rule, String> {
        let words = text.split_whitespace().map(|word| word.split('|').map(str::to_lowercase).collect());
        let words: Vec<Vec<String>> = words.collect();
        let is_seen = |word: &String| words::words(word).iter().any(|seen| seen.text == *word);
        let is_word = |word: &String| !word.is_empty() && is_seen(word);
        let has_program = words.first().is_some_and(|first| !first[0].starts_with('-'));
        match has_program && words.iter().flatten().all(is_word) {
            true => Ok(Rule { text: text.split_whitespace().collect::<Vec<_>>().join(" "), words }),
            false => Err(format!("`{text}` is not a program and its words; write it like `oc apply|delete`")),
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
