//! The page for agents.

use crate::on_both;

on_both! {
    fn the_page_can_be_a_skill(sealed: Sealed) {
        assert_eq!(sealed.ok(&["prime", "--skill"]), "written to .claude/skills/fence/SKILL.md");
        let skill = std::fs::read_to_string(sealed.path().join(".claude/skills/fence/SKILL.md")).expect("a skill");
        let page = sealed.ok(&["prime"]);
        assert!(skill.starts_with("---\nname: fence\ndescription: ") && skill.trim_end().ends_with(&page), "{skill}");
        let json: serde_json::Value = serde_json::from_str(&sealed.ok(&["--json", "prime"])).expect("JSON");
        assert_eq!(json["page"].as_str().map(str::trim_end), Some(page.as_str()));
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one", "--board", "auth"]);
        assert!(sealed.ok(&["prime", "--board", "auth"]).contains("`fence claim --keep --wait 1m --board auth`"));
        assert_eq!(sealed.ok(&["prime", "--skill=elsewhere"]), "written to elsewhere/SKILL.md");
        let typo = sealed.fence(&["prime", "--board", "aut"]);
        assert!(typo.code == 1 && typo.out.is_empty() && typo.err.contains("there is no board `aut`"), "{typo:?}");
    }
}
