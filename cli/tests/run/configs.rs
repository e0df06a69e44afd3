//! Naming the store: config files and variables, their errors, and passing the store on.

use lockkeeper_testkit::cases;
use serde_json::Value;

use crate::rig::{Case, Rig, Running, code, contains, exits, fails, stderr_of};

pub(crate) const CASES: &[Case] = cases![
    config_file_names_the_store,
    bad_configuration_is_78,
    errors_of_a_config_file_name_it_and_the_key,
    only_missing_config_is_skipped,
    keys_in_the_environment_of_another_url_are_refused,
    pass_url_gives_the_command_the_store,
];

fn config_file_names_the_store(rig: &Rig) {
    let url = rig.url().to_owned();
    let store = format!("url = {url:?}\nnamespace = \"from-a-file\"\n");
    rig.write("locks.toml", &store);
    rig.write(
        "app.toml",
        &format!("port = 80\n[shop]\n[shop.locks]\n{store}"),
    );
    std::fs::create_dir(rig.path(".config")).unwrap();
    let home = rig.folder.path().to_owned();
    let held = |change: &dyn Fn(&mut std::process::Command)| {
        let mut command =
            rig.run_command(&["a"], "touch held; until [ -e done ]; do sleep 0.05; done");
        command
            .env_remove("LOCKKEEPER_URL")
            .env("HOME", &home)
            .env_remove("XDG_CONFIG_HOME");
        change(&mut command);
        let holder = Running(Some(command.spawn().unwrap()));
        rig.until_file("held");
        // In the namespace of the file, and not in the default one.
        assert!(rig.who("a").is_null());
        for file in ["locks.toml", "app.toml", "app.toml:shop.locks"] {
            let who = ["who", "--json", "--config", file];
            let output = rig.lockkeeper(&who).output().unwrap();
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(report["held"][0]["name"], "a", "{file}: {report}");
        }
        rig.write("done", "");
        assert_eq!(holder.code(), 0);
        rig.remove(&["held", "done"]);
    };
    held(&|command| {
        command.env("LOCKKEEPER_CONFIG", "locks.toml");
    });
    std::fs::copy(rig.path("locks.toml"), rig.path(".config/lockkeeper.toml")).unwrap();
    held(&|_| {});
}

fn bad_configuration_is_78(rig: &Rig) {
    rig.write("bad.toml", "url = \"memory:\"\npassword = swordfish\n");
    rig.write("typo.toml", "url = \"memory:\"\ntlt = \"5s\"\n");
    for (args, part) in [
        (&["--url", "not a url", "a"][..], "URL"),
        (&["--url", "bogus:x", "a"], "memory:"),
        (&["--url", "memory:?tlt=5s", "a"], "ttl"),
        (&["--url", "memory:?ttl=soon", "a"], "30s"),
        (&["--url", "memory:", "a"], "sqlite:"),
        (
            &["--url", "sqlite:/nowhere/at/all/locks.db", "a"],
            "create it",
        ),
        (&["--config", "missing.toml", "a"], "missing.toml"),
        (&["--config", "missing:a", "a"], "missing:a cannot be used"),
        (&["--config", "bad.toml", "a"], "bad.toml"),
        (&["--config", "typo.toml", "a"], "ttl"),
    ] {
        let output = rig.run(args, "touch started");
        let line = fails(&output, 78);
        assert!(line.contains(part), "{args:?}: {line}");
        assert!(!line.contains("swordfish"), "{line}");
    }
    let mut none = rig.run_command(&["a"], "touch started");
    let home = rig.folder.path();
    let output = none
        .env_remove("LOCKKEEPER_URL")
        .env("HOME", home)
        .env_remove("XDG_CONFIG_HOME")
        .output()
        .unwrap();
    assert_eq!(code(&output), 78);
    contains(&stderr_of(&output), &["LOCKKEEPER_URL"]);
    assert!(!rig.exists("started"));
}

fn errors_of_a_config_file_name_it_and_the_key(rig: &Rig) {
    for (text, part) in [
        ("url = 'memory:'\npassword = swordfish", "line 2, column 12"),
        ("url = 'memory:'\npassword = 'swordfish", "line 2, column"),
        ("ttl = '5s'", "`url = "),
        ("url = 7", "`url = "),
        ("url = 'swordfish'", "URL"),
        ("url = 'memory:?ttl=1s'\nttl = '2s'", "`ttl` is given twice"),
        ("url = 'memory:'\nttl = 5.5", "`ttl` takes"),
        ("url = 'memory:'\nttl = ['swordfish', 1]", "`ttl` takes"),
        ("url = 'memory:'\nttl = 'soon'", "`ttl` takes a duration"),
        ("url = 'memory:'\ntlt = '5s'", "`tlt`"),
        ("url = 'bogus:'", "`bogus:`"),
        (
            "[locks]\nurl = 'memory:'\npassword = 'swordfish'",
            "([locks] of config file",
        ),
        (
            "url = 'memory:'\n[[shop]]\nurl = 'memory:'",
            "several stores: the file itself, [shop 1]",
        ),
        ("url = 'memory:'\n[more]\nttl = '5s'", "`more` is a table"),
    ] {
        rig.write("here.toml", text);
        let output = rig.run(&["--config", "here.toml", "a"], "touch started");
        let line = fails(&output, 78);
        assert!(
            line.contains("here.toml") && line.contains(part),
            "{text}: {line}"
        );
        assert!(!line.contains("swordfish"), "{line}");
    }
}

fn only_missing_config_is_skipped(rig: &Rig) {
    let run = |vars: &[(&str, &str)]| {
        let mut command = rig.run_command(&["a"], "true");
        command.env("HOME", rig.folder.path());
        command.env_remove("XDG_CONFIG_HOME");
        let output = command.envs(vars.iter().copied()).output().unwrap();
        (code(&output), stderr_of(&output))
    };
    let empty = [("LOCKKEEPER_CONFIG", ""), ("LOCKKEEPER_TTL", "")];
    assert_eq!(run(&empty), (0, String::new()));
    // A home folder that is not there has no config file.
    for home in ["/nowhere", "/dev/null"] {
        let (status, line) = run(&[("LOCKKEEPER_URL", ""), ("HOME", home)]);
        assert_eq!(status, 78, "{line}");
        contains(&line, &["no store is named"]);
    }
    // A config file that cannot be read is an error: the next file may name another store.
    let link = |to: &str, from: &str| std::os::unix::fs::symlink(to, rig.path(from)).unwrap();
    std::fs::create_dir(rig.path("dangling")).unwrap();
    link("nowhere", "dangling/lockkeeper.toml");
    link("loop", "loop");
    for folder in ["dangling", "loop"] {
        let path = rig.path(folder);
        let path = path.to_str().unwrap();
        let (status, line) = run(&[("LOCKKEEPER_URL", ""), ("XDG_CONFIG_HOME", path)]);
        assert_eq!(status, 78, "{line}");
        let file = format!("{path}/lockkeeper.toml cannot be used");
        assert!(line.contains(&file), "{line}");
    }
}

fn keys_in_the_environment_of_another_url_are_refused(rig: &Rig) {
    let url = rig.url().to_owned();
    rig.write("locks.toml", &format!("url = {url:?}\n"));
    let store = ["--url", &url];
    let holder = {
        let mut command = rig.lockkeeper(&[&["run"], &store[..], &["foreign"]].concat());
        command.args([
            "--",
            "sh",
            "-c",
            "touch held; until [ -e release ]; do sleep 0.05; done",
        ]);
        Running(Some(command.spawn().unwrap()))
    };
    rig.until_file("held");
    let unlock = ["unlock", "--force", "--yes", "foreign"];
    for (args, vars, part) in [
        (&store[..], &[][..], "--url"),
        (&["--config", "locks.toml"], &[], "locks.toml"),
        (&[], &[("LOCKKEEPER_CONFIG", "locks.toml")], "locks.toml"),
    ] {
        let mut command = rig.lockkeeper(&[&unlock[..], args].concat());
        command.envs(vars.iter().copied());
        let output = command
            .env("LOCKKEEPER_NAMESPACE", "staging")
            .output()
            .unwrap();
        let line = stderr_of(&output);
        assert_eq!(code(&output), 78, "{line}");
        contains(&line, &["LOCKKEEPER_NAMESPACE is set", part]);
    }
    // The key of the variable is one of that URL.
    let mut command = rig.lockkeeper(&unlock);
    let output = command
        .env("LOCKKEEPER_NAMESPACE", "staging")
        .output()
        .unwrap();
    exits(&output, 0);
    rig.write("release", "");
    assert_eq!(holder.code(), 0, "the lock was not freed");
}

fn pass_url_gives_the_command_the_store(rig: &Rig) {
    let url = rig.url().to_owned();
    let file = format!("url = {url:?}\nnamespace = \"from-a-file\"\n");
    rig.write("locks.toml", &file);
    let script = format!(
        "cd / && {} who --json \"$LOCKKEEPER_NAME\"",
        env!("CARGO_BIN_EXE_lockkeeper")
    );
    rig.write(
        "app.toml",
        &format!("port = 80\n[a.locks]\n{file}[b]\nurl = 'memory:'"),
    );
    for store in [
        &[][..],
        &["--url", &url],
        &["--config", "locks.toml"],
        &["--config", "app.toml:a.locks"],
    ] {
        let args = [&["--pass-url"], store, &["pass-url"]].concat();
        let output = rig.run(&args, &script);
        assert_eq!(code(&output), 0, "{args:?}: {}", stderr_of(&output));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["held"][0]["name"], "pass-url", "{args:?}: {report}");
    }
    // A relative path names the file in the folder of `run`, also if the command changes its own.
    let folder = rig.path("a folder #1?");
    std::fs::create_dir(&folder).unwrap();
    let url = "sqlite:b%20b.db?ttl=20s";
    for option in [&[][..], &["--url", url]] {
        let mut run = rig.run_command(&[&["--pass-url"], option, &["relative"]].concat(), &script);
        run.current_dir(&folder).env("LOCKKEEPER_URL", url);
        let output = run.output().unwrap();
        exits(&output, 0);
        assert!(folder.join("b b.db").exists());
        let text = String::from_utf8_lossy(&output.stdout);
        contains(&text, &["\"relative\""]);
    }
}
