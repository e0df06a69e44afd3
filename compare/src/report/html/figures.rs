//! Tables with a bar for each figure, and a page of such tables for other programs.

use maud::{Markup, html};

use super::chart::bar;
use super::page;

/// A page of tables in the style of the report, for figures that are not those of a [`Report`](crate::Report).
#[derive(Clone, Debug)]
pub struct Figures {
    /// The name of the program that makes the page.
    pub title: String,
    /// The heading.
    pub heading: String,
    /// What the page shows.
    pub lede: String,
    /// The tables, under the heading of their section.
    pub sections: Vec<(String, Vec<Table>)>,
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    /// The caption.
    pub caption: String,
    /// What the rows are, and what each of their figures is.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<TableRow>,
}

/// A row of a table.
#[derive(Clone, Debug)]
pub struct TableRow {
    /// What was measured.
    pub name: String,
    /// Whether it is this library.
    pub is_ours: bool,
    /// The figures: the length of the bar, if there is one, and the text beside it.
    pub figures: Vec<(Option<f64>, String)>,
}

impl Figures {
    /// Returns the page as one HTML file that needs no network.
    pub fn to_html(&self) -> String {
        let content = html! {
            header {
                p.name { (self.title) }
                h1 { (self.heading) }
                p.lede { (self.lede) }
            }
            main {
                @for (heading, tables) in &self.sections {
                    section {
                        h2 { (heading) }
                        div.stores {
                            @for table in tables {
                                (table.draw(&html! {}, |_| (html! {}, html! {})))
                            }
                        }
                    }
                }
            }
            footer {
                p {
                    "Made by " code { (self.title) " --html" }
                    ". The numbers are of one machine and one run."
                }
            }
        };
        page(&self.title, &content).into_string()
    }
}

impl Table {
    /// Draws the table with another heading behind those of the columns. `more` returns what stands behind the name of the
    /// row with a number, and the cell behind its figures.
    pub(super) fn draw(
        &self,
        heading: &Markup,
        more: impl Fn(usize) -> (Markup, Markup),
    ) -> Markup {
        let longest = |column: usize| {
            let values = self.rows.iter().map(|row| row.figures.get(column)?.0);
            values.flatten().fold(0.0, f64::max)
        };
        let names = || self.columns.iter().skip(1);
        html! {
            table.rows {
                caption { (self.caption) }
                thead {
                    tr {
                        @for name in &self.columns { th scope="col" { (name) } }
                        (heading)
                    }
                }
                tbody {
                    @for (number, row) in self.rows.iter().enumerate() {
                        @let (note, cell) = more(number);
                        tr.ours[row.is_ours] {
                            th scope="row" { (row.name) (note) }
                            @for (column, ((value, text), name)) in row.figures.iter().zip(names()).enumerate() {
                                td data-label=(name) { (bar(*value, longest(column), text, name)) }
                            }
                            (cell)
                        }
                    }
                }
            }
        }
    }
}
