//! The links of the Markdown pages lead to files and headings that exist.

use std::fs;
use std::path::{Path, PathBuf};

/// Finds the Markdown pages under `folder`.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            pages(&path, found);
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Returns the text of a page without its blocks of code.
fn prose(page: &Path) -> String {
    let text = fs::read_to_string(page).unwrap();
    text.split("\n```").step_by(2).collect()
}

/// Returns whether a page has a heading with this anchor, as GitHub and mdBook make it.
fn has_heading(page: &Path, anchor: &str) -> bool {
    prose(page).lines().any(|line| {
        let heading = line.trim_start_matches('#');
        let kept = heading
            .trim()
            .chars()
            .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        heading != line && kept.collect::<String>().to_lowercase().replace(' ', "-") == anchor
    })
}

/// Returns whether a link of a page leads somewhere. A link to another site is not followed.
fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_owned(),
        _ => page.parent().unwrap().join(path),
    };
    link.contains("://") || target.exists() && (anchor.is_empty() || has_heading(&target, anchor))
}

#[test]
fn links_of_pages_lead_somewhere() {
    let mut all = Vec::new();
    pages(Path::new(env!("CARGO_MANIFEST_DIR")), &mut all);
    let (mut count, mut dead) = (0, Vec::new());
    for page in &all {
        for rest in prose(page).split("](").skip(1) {
            let link = rest.split(')').next().unwrap();
            count += 1;
            if !leads_somewhere(page, link) {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(count > 100, "{count} links in {} pages", all.len());
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}
