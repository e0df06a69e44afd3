//! Core's floors import downwards, and no circle of imports has more than two files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The folders of core, from the lowest floor up. The files beside them are the ground.
const FLOORS: [&str; 4] = ["contract", "engine", "keeper", "config"];

/// The path of a module, joined with `/`. That of `lib.rs` is empty.
type Module = String;

/// The modules of a package, each with those that it imports.
///
/// The paths that begin with `crate::` or `super::` count. What a module names of its own children, such as a face
/// that re-exports them, does not.
struct Imports(BTreeMap<Module, BTreeSet<Module>>);

impl Imports {
    fn read(src: &Path) -> Self {
        let mut texts = BTreeMap::new();
        read_folder(src, "", &mut texts);
        let imported = |(module, text): (&Module, &String)| {
            let mut found = BTreeSet::new();
            let code = code_of(text);
            for path in paths(&code) {
                let target = resolve(module, &path, |it| texts.contains_key(it));
                found.extend(target.filter(|it| !it.is_empty() && it != module));
            }
            (module.clone(), found)
        };
        Self(texts.iter().map(imported).collect())
    }

    /// Returns what a module imports, also by way of other modules.
    fn reachable<'m>(&'m self, module: &'m str) -> BTreeSet<&'m str> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![module]);
        while let Some(next) = open.pop() {
            let new = self.0[next].iter().map(String::as_str);
            open.extend(new.filter(|it| reached.insert(*it)));
        }
        reached
    }

    /// Returns the sets of modules that all import each other.
    fn circles(&self) -> BTreeSet<Vec<&str>> {
        let reachable: BTreeMap<&str, _> = self
            .0
            .keys()
            .map(|it| (&**it, self.reachable(it)))
            .collect();
        let mut circles = BTreeSet::new();
        for (module, reached) in &reachable {
            let mutual = reached.iter().copied();
            let mutual: Vec<_> = mutual.filter(|it| reachable[it].contains(module)).collect();
            circles.insert(mutual);
        }
        circles.remove(&Vec::new());
        circles
    }

    /// Returns the folder of a module that lies directly in the package; empty for a file beside the folders.
    fn folder<'m>(&self, module: &'m str) -> &'m str {
        let first = module.split('/').next().unwrap();
        let inside = format!("{first}/");
        match self.0.keys().any(|it| it.starts_with(&inside)) {
            true => first,
            false => "",
        }
    }
}

/// Reads the texts of the modules in a folder.
fn read_folder(folder: &Path, prefix: &str, texts: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        if path.is_dir() {
            read_folder(&path, &format!("{prefix}{name}/"), texts);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let module = match name {
                "lib" | "mod" => prefix.trim_end_matches('/').to_owned(),
                _ => format!("{prefix}{name}"),
            };
            texts.insert(module, fs::read_to_string(&path).unwrap());
        }
    }
}

/// Returns a text without comments, unit tests and imports that only doc comments need.
fn code_of(text: &str) -> String {
    let code = text.split("\n#[cfg(test)]\nmod tests").next().unwrap();
    let mut parts = code.split("#[cfg(doc)]\n");
    let first = parts.next().unwrap_or_default();
    let others = parts.map(|it| it.split_once(';').unwrap().1);
    let code: String = [first].into_iter().chain(others).collect();
    let lines = code.lines().map(|it| it.split("//").next().unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the paths in a text that begin with `crate` or `super`, as their segments. A tree has one path for each of
/// its leaves.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for first in ["crate::", "super::"] {
        for (at, _) in code.match_indices(first) {
            // A path that has it as a later segment begins earlier. `pub(in crate::a)` imports nothing.
            let before = code[..at].chars().next_back();
            let is_segment =
                before.is_some_and(|it| it == ':' || it == '_' || it.is_alphanumeric());
            if !is_segment && !code[..at].ends_with("(in ") {
                tree(&code[at..], &[], &mut found);
            }
        }
    }
    found
}

/// Reads a path or a tree of paths after `prefix`. Returns what follows it.
fn tree<'c>(code: &'c str, prefix: &[String], found: &mut Vec<Vec<String>>) -> &'c str {
    let mut code = code.trim_start();
    let mut path = prefix.to_vec();
    loop {
        if let Some(inside) = code.strip_prefix('{') {
            code = inside;
            while !code.trim_start().starts_with('}') {
                code = tree(code, &path, found);
                let end = code.find([',', '}']).unwrap();
                code = code[end..].trim_start_matches(',');
            }
            return &code.trim_start()[1..];
        }
        let end = code.find(|it: char| it != '_' && !it.is_alphanumeric());
        let (segment, rest) = code.split_at(end.unwrap_or(code.len()));
        path.push(segment.to_owned());
        let Some(rest) = rest.strip_prefix("::") else {
            found.push(path);
            // Past a `*`.
            return rest;
        };
        code = rest.trim_start();
    }
}

/// Returns the module that a path in `module` leads to: the longest part of it that is one.
fn resolve(module: &str, path: &[String], is_module: impl Fn(&str) -> bool) -> Option<Module> {
    let mut at: Vec<&str> = module.split('/').filter(|it| !it.is_empty()).collect();
    let mut path = path.iter().map(String::as_str).peekable();
    if path.next_if_eq(&"crate").is_some() {
        at.clear();
    }
    while path.next_if_eq(&"super").is_some() {
        at.pop()?;
    }
    at.extend(path);
    while !is_module(&at.join("/")) {
        at.pop()?;
    }
    Some(at.join("/"))
}

#[test]
fn floors_of_core_import_only_those_before_them() {
    let imports = Imports::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("core/src"));
    let floor = |module: &str| {
        let folder = imports.folder(module);
        let above = FLOORS.iter().position(|it| *it == folder);
        assert!(above.is_some() || folder.is_empty(), "{folder} is no floor");
        above.map_or(0, |it| it + 1)
    };
    let mut upwards = Vec::new();
    for (module, imported) in &imports.0 {
        let above = imported.iter().filter(|it| floor(it) > floor(module));
        // The crate's face stands above all.
        let above = above.filter(|_| !module.is_empty());
        upwards.extend(above.map(|it| format!("core/src/{module}.rs imports {it}")));
    }
    assert!(upwards.is_empty(), "{upwards:#?}");
}

#[test]
fn at_most_two_files_import_each_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let packages = fs::read_dir(root.join("backends")).unwrap();
    let packages = packages.map(|it| it.unwrap().path());
    let mut wrong = Vec::new();
    for package in packages.chain([root.join("core")]) {
        let imports = Imports::read(&package.join("src"));
        for circle in imports.circles() {
            if circle.len() > 2 {
                wrong.push(format!("{}: {}", package.display(), circle.join(", ")));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "these files import each other\n{wrong:#?}"
    );
}

#[test]
fn paths_of_a_text_are_read() {
    let code = code_of(
        "use crate::a::{self, b::{C, D}, e::*}; // use crate::z\n#[cfg(doc)]\nuse crate::y;\nfn f() { super::g::h(); }",
    );
    let read: Vec<_> = paths(&code).iter().map(|it| it.join("::")).collect();
    let all = [
        "crate::a::self",
        "crate::a::b::C",
        "crate::a::b::D",
        "crate::a::e::",
        "super::g::h",
    ];
    assert_eq!(read, all);
    let modules = ["a", "a/b", "x/g"];
    let resolved = |path: &str| {
        let path: Vec<_> = path.split("::").map(str::to_owned).collect();
        resolve("x/y", &path, |it| modules.contains(&it))
    };
    assert_eq!(resolved("crate::a::b::C").as_deref(), Some("a/b"));
    assert_eq!(resolved("super::g::h").as_deref(), Some("x/g"));
}
