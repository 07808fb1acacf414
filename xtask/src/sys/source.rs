//! What `rdma-sys` declares: as bindgen writes it when it is built, and what it has by hand.

use std::{collections::BTreeMap, fs, path::Path, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::{Message, MetadataCommand};
use syn::{Expr, Field, ForeignItem, Ident, ImplItem, Item, ItemMod, Lit, Signature, Type};

use crate::command::command;

/// The package that depends on `rdma-sys`, and on nothing else.
const MANIFEST: &str = "xtask/rdma-sys/Cargo.toml";

const PACKAGE: &str = "rdma-sys";

/// A `struct` or `union`.
pub struct Aggregate {
    pub is_union: bool,
    pub fields: Vec<Field>,
}

/// An enumeration.
#[derive(Default)]
pub struct Numbers {
    /// Its values are bits, which are combined.
    pub are_flags: bool,
    pub values: Vec<(String, u64)>,
}

/// Declarations by name.
#[derive(Default)]
pub struct Source {
    pub aggregates: BTreeMap<String, Aggregate>,
    pub numbers: BTreeMap<String, Numbers>,
    pub functions: BTreeMap<String, Signature>,
}

impl Source {
    /// Builds `rdma-sys`, and reads what it declares.
    ///
    /// # Errors
    /// It does not build, for want of a libclang that it can use for one; what cargo says is printed.
    pub fn build(target: &Path) -> Result<Self> {
        let mut build = command("cargo build --locked --message-format json-render-diagnostics");
        build.args(["--manifest-path", MANIFEST]);
        build.env("CARGO_TARGET_DIR", target);
        let built = build.stderr(Stdio::inherit()).output()?;
        ensure!(
            built.status.success(),
            "rdma-sys does not build here: it wants libibverbs-dev, librdmacm-dev, and libclang-dev of a \
             version before 16"
        );
        let metadata = MetadataCommand::new().manifest_path(MANIFEST).exec()?;
        let package = (metadata.packages.iter())
            .find(|package| package.name.as_str() == PACKAGE)
            .context("it has no dependency rdma-sys")?;
        let written = Message::parse_stream(&built.stdout[..])
            .filter_map(Result::ok)
            .find_map(|message| match message {
                Message::BuildScriptExecuted(script) if script.package_id == package.id => {
                    Some(script.out_dir)
                }
                _ => None,
            })
            .context("cargo does not say where rdma-sys was built")?;
        let by_hand = (package.manifest_path.parent())
            .context("a manifest has a folder")?
            .join("src/types.rs");
        let mut source = Self::default();
        for path in [written.join("bindings.rs"), by_hand] {
            let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
            source.read(syn::parse_file(&text)?.items);
        }
        Ok(source)
    }

    fn read(&mut self, items: Vec<Item>) {
        for item in items {
            match item {
                Item::Struct(item) => {
                    let fields = item.fields.into_iter().collect();
                    self.aggregate(&item.ident, false, fields);
                }
                Item::Union(item) => {
                    let fields = item.fields.named.into_iter().collect();
                    self.aggregate(&item.ident, true, fields);
                }
                Item::Mod(item) => self.numbers_of(item),
                Item::Impl(item) => {
                    for item in item.items {
                        if let ImplItem::Const(item) = item {
                            self.flag(&item.ty, &item.ident, &item.expr);
                        }
                    }
                }
                Item::Const(item) => self.flag(&item.ty, &item.ident, &item.expr),
                Item::ForeignMod(item) => {
                    for item in item.items {
                        if let ForeignItem::Fn(item) = item {
                            self.functions.insert(item.sig.ident.to_string(), item.sig);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn aggregate(&mut self, name: &Ident, is_union: bool, fields: Vec<Field>) {
        let of_flags = matches!(&fields[..], [only] if only.ident.is_none());
        if !of_flags {
            (self.aggregates).insert(name.to_string(), Aggregate { is_union, fields });
        }
    }

    /// `pub mod name { pub type Type = …; pub const VALUE: Type = …; }`
    fn numbers_of(&mut self, item: ItemMod) {
        let mut numbers = Numbers::default();
        for item in item.content.into_iter().flat_map(|(_, items)| items) {
            if let Item::Const(item) = item
                && let Some(value) = number(&item.expr)
            {
                numbers.values.push((item.ident.to_string(), value));
            }
        }
        self.numbers.insert(item.ident.to_string(), numbers);
    }

    /// `pub const VALUE: name = name(…);`, by itself or in an `impl`.
    fn flag(&mut self, ty: &Type, name: &Ident, value: &Expr) {
        if let (Type::Path(ty), Expr::Call(call)) = (ty, value)
            && let Some(ty) = ty.path.get_ident()
            && let Some(value) = call.args.first().and_then(number)
        {
            let numbers = self.numbers.entry(ty.to_string()).or_default();
            numbers.are_flags = true;
            numbers.values.push((name.to_string(), value));
        }
    }
}

fn number(expr: &Expr) -> Option<u64> {
    match expr {
        Expr::Lit(lit) => match &lit.lit {
            Lit::Int(int) => int.base10_parse().ok(),
            _ => None,
        },
        _ => None,
    }
}
