//! Chooses the store in a config file, so that the program stays the same on every store.
//!
//! `cargo run --features serde --example config_file`

use std::error::Error;

use lockkeeper::Config;
use serde::Deserialize;

#[derive(Deserialize)]
struct Settings {
    locks: Config,
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("locks.db");
    let file = format!(
        r#"
        [locks]
        url = "sqlite:{}"
        namespace = "shop"
        ttl = "10s"
        wait = "2s"
        require = ["cross_process"]
        "#,
        path.display()
    );

    let settings: Settings = toml::from_str(&file)?;
    let keeper = lockkeeper::open_config(&settings.locks)?;
    let done = keeper.run_locked("nightly-report", |guard| {
        format!("held on {} with token {}", keeper.backend(), guard.token())
    })?;
    println!("{}", done.held()?);

    // A misspelled key is an error.
    let wrong = file.replace("ttl", "tll");
    let wrong: Settings = toml::from_str(&wrong)?;
    match lockkeeper::open_config(&wrong.locks) {
        Ok(_) => Err("the unknown key was accepted".into()),
        Err(error) => {
            println!("refused: {error}");
            Ok(())
        }
    }
}
