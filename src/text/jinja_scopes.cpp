#include "text/jinja_scopes.h"

#include <unordered_map>
#include <unordered_set>

namespace moeflux::jinja {
namespace {

// What a scope does with its names, in the order of the source. Blocks inside it have scopes of their own:
// only what is evaluated outside of them counts.
class Frame {
 public:
  static Frame inside(const Frame* parent) { return {parent, nullptr}; }
  // The same scope behind a condition: notes only what it adds to what was there before.
  Frame branch() const { return {parent_, this}; }

  void declare(Symbol name) {
    if (!has(name)) names_.emplace(name, Start::Given);
  }
  void load(Symbol name) {
    if (!knows(name)) names_.emplace(name, Start::FromCaller);
  }
  void store(Symbol name) {
    stored_.insert(name);
    if (!has(name)) names_.emplace(name, is_known_outside(name) ? Start::Given : Start::Hidden);
  }
  // Three ways to go on, of which one is taken.
  void join(const Frame& a, const Frame& b, const Frame& c) {
    std::unordered_map<Symbol, int> counts;
    for (const Frame* branch : {&a, &b, &c})
      for (const Symbol name : branch->stored_)
        if (!has_stored(name)) ++counts[name];
    for (const Frame* branch : {&a, &b, &c}) {
      for (const auto& [name, start] : branch->names_) names_[name] = start;
      stored_.insert(branch->stored_.begin(), branch->stored_.end());
    }
    for (const auto& [name, count] : counts)
      if (count < 3) names_[name] = is_known_outside(name) ? Start::Given : Start::FromCaller;
  }
  HiddenNames hidden() const {
    HiddenNames result;
    for (const auto& [name, start] : names_)
      if (start == Start::Hidden) result.push_back(name);
    return result;
  }

 private:
  enum class Start : uint8_t { Given, FromCaller, Hidden };  // what the name is when the scope begins

  Frame(const Frame* parent, const Frame* before) : parent_(parent), before_(before) {}

  bool has(Symbol name) const { return names_.contains(name) || (before_ && before_->has(name)); }
  bool has_stored(Symbol name) const {
    return stored_.contains(name) || (before_ && before_->has_stored(name));
  }
  bool knows(Symbol name) const { return has(name) || is_known_outside(name); }
  bool is_known_outside(Symbol name) const { return parent_ && parent_->knows(name); }

  const Frame *parent_, *before_;
  std::unordered_map<Symbol, Start> names_;
  std::unordered_set<Symbol> stored_;
};

void visit(Frame& frame, const Expression* e);

void visit(Frame& frame, const std::vector<ExpressionPtr>& list) {
  for (const ExpressionPtr& e : list) visit(frame, e.get());
}

void visit(Frame& frame, const CallArguments& arguments) {
  visit(frame, arguments.positional);
  for (const auto& [name, e] : arguments.named) visit(frame, e.get());
  visit(frame, arguments.rest.get());
  visit(frame, arguments.named_rest.get());
}

void visit(Frame& frame, const Expression* e) {
  if (!e) return;
  switch (e->kind) {
    case Expression::Kind::Literal:
      return;
    case Expression::Kind::Name:
      return frame.load(static_cast<const Name*>(e)->symbol);
    case Expression::Kind::NamespaceTarget:
      return frame.load(static_cast<const NamespaceTarget*>(e)->symbol);
    case Expression::Kind::List:
      return visit(frame, static_cast<const ListLiteral*>(e)->items);
    case Expression::Kind::Dict:
      for (const auto& [key, value] : static_cast<const DictLiteral*>(e)->items) {
        visit(frame, key.get());
        visit(frame, value.get());
      }
      return;
    case Expression::Kind::Attribute:
      return visit(frame, static_cast<const Attribute*>(e)->object.get());
    case Expression::Kind::Item:
      visit(frame, static_cast<const Item*>(e)->object.get());
      return visit(frame, static_cast<const Item*>(e)->key.get());
    case Expression::Kind::Slice:
      visit(frame, static_cast<const Slice*>(e)->start.get());
      visit(frame, static_cast<const Slice*>(e)->stop.get());
      return visit(frame, static_cast<const Slice*>(e)->step.get());
    case Expression::Kind::Call:
      visit(frame, static_cast<const Call*>(e)->callee.get());
      return visit(frame, static_cast<const Call*>(e)->arguments);
    case Expression::Kind::Filter:
      visit(frame, static_cast<const Filter*>(e)->input.get());
      return visit(frame, static_cast<const Filter*>(e)->arguments);
    case Expression::Kind::Test:
      visit(frame, static_cast<const Test*>(e)->input.get());
      return visit(frame, static_cast<const Test*>(e)->arguments);
    case Expression::Kind::Unary:
      return visit(frame, static_cast<const Unary*>(e)->operand.get());
    case Expression::Kind::Binary:
      visit(frame, static_cast<const Binary*>(e)->left.get());
      return visit(frame, static_cast<const Binary*>(e)->right.get());
    case Expression::Kind::Logical:
      visit(frame, static_cast<const Logical*>(e)->left.get());
      return visit(frame, static_cast<const Logical*>(e)->right.get());
    case Expression::Kind::Concat:
      return visit(frame, static_cast<const Concat*>(e)->parts);
    case Expression::Kind::Compare:
      visit(frame, static_cast<const Compare*>(e)->first.get());
      for (const auto& [op, operand] : static_cast<const Compare*>(e)->rest) visit(frame, operand.get());
      return;
    case Expression::Kind::Conditional:
      visit(frame, static_cast<const Conditional*>(e)->test.get());
      visit(frame, static_cast<const Conditional*>(e)->then.get());
      return visit(frame, static_cast<const Conditional*>(e)->otherwise.get());
  }
}

void visit_target(Frame& frame, const Expression& target, bool declares) {
  if (target.kind == Expression::Kind::Name) {
    const Symbol name = static_cast<const Name&>(target).symbol;
    declares ? frame.declare(name) : frame.store(name);
  } else if (target.kind == Expression::Kind::List) {
    for (const ExpressionPtr& item : static_cast<const ListLiteral&>(target).items)
      visit_target(frame, *item, declares);
  } else {
    visit(frame, &target);
  }
}

void visit(Frame& frame, const Body& body);

// An elif stands for an if of its own in the second branch.
void visit_if(Frame& frame, const If& node) {
  visit(frame, node.branches[0].first.get());
  Frame first = frame.branch(), others = frame.branch(), otherwise = frame.branch();
  visit(first, node.branches[0].second);
  for (size_t i = 1; i < node.branches.size(); ++i) {
    visit(others, node.branches[i].first.get());
    Frame body = others.branch();
    visit(body, node.branches[i].second);
    others.join(body, others.branch(), others.branch());
  }
  visit(otherwise, node.otherwise);
  frame.join(first, others, otherwise);
}

// What a statement does in the scope that it stands in.
void visit(Frame& frame, const Statement& s) {
  switch (s.kind) {
    case Statement::Kind::Output:
      for (const Output::Part& part : static_cast<const Output&>(s).parts)
        visit(frame, part.expression.get());
      return;
    case Statement::Kind::If:
      return visit_if(frame, static_cast<const If&>(s));
    case Statement::Kind::For:
      return visit(frame, static_cast<const For&>(s).iterable.get());
    case Statement::Kind::Set:
      visit(frame, static_cast<const Set&>(s).value.get());
      return visit_target(frame, *static_cast<const Set&>(s).target, false);
    case Statement::Kind::SetBlock:
      return visit_target(frame, *static_cast<const SetBlock&>(s).target, false);
    case Statement::Kind::Macro:
      return frame.store(static_cast<const Macro&>(s).symbol);
    case Statement::Kind::CallBlock:
      return visit(frame, static_cast<const CallBlock&>(s).call.get());
    case Statement::Kind::FilterBlock:
      return visit(frame, static_cast<const FilterBlock&>(s).filter.get());
    case Statement::Kind::With:
      for (const auto& [target, value] : static_cast<const With&>(s).assignments) visit(frame, value.get());
      return;
    case Statement::Kind::Scoped:
    case Statement::Kind::Break:
    case Statement::Kind::Continue:
      return;
  }
}

void visit(Frame& frame, const Body& body) {
  for (const StatementPtr& s : body) visit(frame, *s);
}

void descend(const Frame& frame, Body& body);

// The names of one scope, then of those inside it.
template <class Declare>
HiddenNames settle(const Frame* parent, Body& body, Declare declare) {
  Frame frame = Frame::inside(parent);
  declare(frame);
  visit(frame, body);
  descend(frame, body);
  return frame.hidden();
}

void settle_for(const Frame& frame, For& node) {
  node.hidden = settle(&frame, node.body, [&](Frame& f) { visit_target(f, *node.target, true); });
  node.hidden_otherwise = settle(&frame, node.otherwise, [](Frame&) {});
}

void settle_macro(const Frame& frame, Macro& node) {
  node.hidden = settle(&frame, node.body, [&](Frame& f) {
    for (const auto& [symbol, name] : node.parameters) f.declare(symbol);
    visit(f, node.defaults);
  });
}

void descend(const Frame& frame, Statement& s) {
  const auto nothing = [](Frame&) {};
  switch (s.kind) {
    case Statement::Kind::If:
      for (auto& [test, body] : static_cast<If&>(s).branches) descend(frame, body);
      return descend(frame, static_cast<If&>(s).otherwise);
    case Statement::Kind::For:
      return settle_for(frame, static_cast<For&>(s));
    case Statement::Kind::Macro:
      return settle_macro(frame, static_cast<Macro&>(s));
    case Statement::Kind::CallBlock:
      return settle_macro(frame, *static_cast<CallBlock&>(s).caller);
    case Statement::Kind::SetBlock: {
      auto& node = static_cast<SetBlock&>(s);
      node.hidden = settle(&frame, node.body, nothing);
      return;
    }
    case Statement::Kind::FilterBlock: {
      auto& node = static_cast<FilterBlock&>(s);
      node.hidden = settle(&frame, node.body, nothing);
      return;
    }
    case Statement::Kind::With: {
      auto& node = static_cast<With&>(s);
      node.hidden = settle(&frame, node.body, [&](Frame& f) {
        for (const auto& [target, value] : node.assignments) visit_target(f, *target, true);
      });
      return;
    }
    case Statement::Kind::Scoped: {
      auto& node = static_cast<Scoped&>(s);
      node.hidden = settle(&frame, node.body, nothing);
      return;
    }
    default:
      return;
  }
}

void descend(const Frame& frame, Body& body) {
  for (const StatementPtr& s : body) descend(frame, *s);
}

}  // namespace

void find_hidden_names(Tree& tree) {
  tree.hidden = settle(nullptr, tree.body, [](Frame&) {});
}

}  // namespace moeflux::jinja
