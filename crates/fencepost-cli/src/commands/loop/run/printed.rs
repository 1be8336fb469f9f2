//! What a step prints: JSON, or anything.

use super::attempt::FEEDBACK;
use crate::output::text::fit;
use fencepost::loops::Judgement;
use serde_json::Value;

/// What a step printed.
#[derive(Debug, Default)]
pub struct Printed {
    pub data: Option<Value>,
    pub verdict: Option<Judgement>,
    pub feedback: Option<String>,
    pub learned: Option<String>,
    pub cost: Option<Value>,
}

pub fn judgement(value: &Value) -> Option<Judgement> {
    Judgement::ALL.into_iter().find(|one| Some(one.as_str()) == value.as_str())
}

/// Reads what a step printed. With `json` it must be a JSON object, alone or on the last line; that of a judge has a verdict.
pub fn read(stdout: &[u8], json: bool, judges: bool) -> Result<Printed, String> {
    let text = String::from_utf8_lossy(stdout);
    let text = text.trim();
    let object = |text: &str| serde_json::from_str::<Value>(text).ok().filter(Value::is_object);
    let found = object(text).or_else(|| object(text.lines().next_back().unwrap_or_default().trim()));
    let Some(found) = found else {
        return match json {
            true => Err(format!("printed no JSON object: it printed `{}`", fit(text, 200))),
            false => Ok(Printed::default()),
        };
    };
    let text = |name: &str| found[name].as_str().map(str::to_owned).filter(|text| !text.trim().is_empty());
    let verdict = match &found["verdict"] {
        Value::Null if json && judges => {
            return Err("printed JSON without a verdict: pass, fail or skip".into());
        }
        Value::Null => None,
        given => Some(
            judgement(given)
                .ok_or_else(|| format!("printed the verdict {given}, which is not pass, fail or skip"))?,
        ),
    };
    Ok(Printed {
        verdict,
        feedback: text("feedback"),
        learned: text("learned").map(|text| fit(&text, FEEDBACK)),
        cost: Some(found["cost"].clone()).filter(Value::is_object),
        data: Some(found),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_step_prints_json_or_anything() {
        let told = |text: &str, json| read(text.as_bytes(), json, json);
        assert!(told("all is well", false).unwrap().data.is_none());
        assert_eq!(
            told("all is well", true).unwrap_err(),
            "printed no JSON object: it printed `all is well`"
        );
        assert!(told("[1]", true).is_err());
        assert!(told("{}", true).unwrap_err().contains("without a verdict"));
        assert!(told("{}", false).unwrap().verdict.is_none());
        let judged = told(
            "thinking …\n{\"verdict\": \"fail\", \"feedback\": \"no tests\", \"cost\": {\"usd\": 0.1}}\n",
            true,
        )
        .unwrap();
        assert_eq!((judged.verdict, judged.feedback.as_deref()), (Some(Judgement::Fail), Some("no tests")));
        assert_eq!(judged.cost, Some(json!({"usd": 0.1})));
        let pretty = told("{\n  \"learned\": \"use jq\",\n  \"cost\": 3\n}", false).unwrap();
        assert_eq!((pretty.learned.as_deref(), pretty.cost), (Some("use jq"), None));
        assert!(told("{\"verdict\": \"maybe\"}", false).unwrap_err().contains("not pass, fail or skip"));
    }
}
