//! Stores out of a config file: the file of `lockkeeper run`, or the tables that a program of yours
//! reads its locks from.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::store::{Source, Wanted};

/// The stores of a TOML file: the file itself, or every table in it, that has a `url`.
/// What else is in the file is another program's business.
pub(crate) fn stores(file: &Path) -> Result<Vec<Wanted>, Failure> {
    let shown = file.display();
    let text = fs::read_to_string(file).map_err(|error| {
        Failure::Usage(format!(
            "--config {shown} cannot be read: {error}; give the path of a TOML file"
        ))
    })?;
    // The parser's own message shows the line, and there may be a password in it.
    let wrong = |line: usize| {
        Failure::Usage(format!(
            "--config {shown} is not TOML: look at line {line}; a store is a table such as [locks] \
             with url = \"...\""
        ))
    };
    let value: Value = toml::from_str(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        wrong(before.map_or(1, |before| before.lines().count().max(1)))
    })?;
    let mut stores = Vec::new();
    collect("", &value, &mut stores);
    if stores.is_empty() {
        return Err(Failure::Usage(format!(
            "--config {shown} names no store; a store is a table such as [locks] with \
             url = \"...\""
        )));
    }
    let wanted = stores.into_iter().map(|(name, table)| Wanted {
        from: format!("{name} of --config {shown}"),
        source: Source::from(table),
        redlock: Vec::new(),
    });
    Ok(wanted.collect())
}

fn collect(name: &str, value: &Value, stores: &mut Vec<(String, Map<String, Value>)>) {
    match value {
        Value::Object(table) if table.contains_key("url") => {
            let name = match name {
                "" => "the store".to_owned(),
                name => format!("[{name}]"),
            };
            stores.push((name, table.clone()));
        }
        Value::Object(table) => {
            for (key, value) in table {
                let name = match name {
                    "" => key.clone(),
                    above => format!("{above}.{key}"),
                };
                collect(&name, value, stores);
            }
        }
        Value::Array(list) => {
            for (number, value) in (1..).zip(list) {
                collect(&format!("{name} {number}"), value, stores);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Vec<String>, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("app.toml");
        fs::write(&file, text).unwrap();
        let names = stores(&file)?.into_iter().map(|wanted| wanted.from);
        let names = names.map(|from| from.split(" of ").next().unwrap().to_owned());
        Ok(names.collect())
    }

    #[test]
    fn tables_with_a_url_are_stores() {
        let text = "port = 80\n[locks]\nurl = 'memory:'\nttl = '5s'\n\
                    [[other.list]]\nurl = 'memory:a'\n[[other.list]]\nurl = 'memory:b'";
        let names = of(text).unwrap();
        assert_eq!(names, ["[locks]", "[other.list 1]", "[other.list 2]"]);
    }

    #[test]
    fn what_is_wrong_is_told_without_the_secrets_in_it() {
        let wrong = of("[locks]\nurl = 'redis://:s3cret@host'\npassword = 's3cret").unwrap_err();
        let said = wrong.to_string();
        assert!(
            said.contains("line 3") && !said.contains("s3cret"),
            "{said}"
        );
        assert!(
            of("port = 80")
                .unwrap_err()
                .to_string()
                .contains("no store")
        );
    }
}
